// GPUs of this machine: measuring, walking and `lnbench comm` on them.
#include "comm/comm_operations.h"
#include "comm/cuda/device_transport.h"
#include "core/check.h"
#include "execute/cuda/device_walk.h"
#include "io/units.h"
#include "kernels/cuda/rows.h"
#include "run/device_comm.h"
#include "run/gpu_planning.h"
#include "run/gpu_session.h"
#include "schedule/accounting.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

class GpuBackend final : public GpuPlanning {
 public:
  std::unique_ptr<PointSession> open(const PointPlan& plan, const RunnerOptions& options,
                                     Communicator& comm) const override {
    return std::make_unique<GpuSession>(plan, options, comm);
  }
  std::unique_ptr<UnitWalk> make_walk(const PointParams& p, UnitWalk::MakeSchedule make_schedule,
                                      MemoryLedger& ledger) const override {
    return std::make_unique<OwningWalk<DeviceWalk, DeviceKernel>>(
        p.problem, std::move(make_schedule), make_device_kernel(p.kernel), make_device_row_worker(),
        ledger);
  }
  double attend_rate(const PointParams& params) const override;
  double record_walking_device(PointRecord& record, const RunnerOptions&) const override {
    const double peak = device_peak_flops();
    record.metrics["device_peak_flops"] = peak;
    record.memory.device_bytes = device_memory_bytes();
    ClockWatch clocks;
    clocks.look();
    clocks.write(record, nullptr);
    return peak;
  }
  Tolerance walk_tolerance(double given) const override { return device_tolerance(given); }
};

double GpuBackend::attend_rate(const PointParams& params) const {
  constexpr int64_t kRows = 2048, kBatch = 8;
  AttentionProblem problem = params.problem;
  problem.seq_len = kRows;
  problem.batch = kBatch;
  problem.causal = false;
  const ShardedProblem segments{problem, dense_pattern(kRows), {kRows, 1, LayoutKind::kContiguous}};
  const auto kernel = make_device_kernel(params.kernel);
  MemoryLedger ledger;
  DeviceExecutor executor(find_algorithm("local").make(segments), 0, *kernel, nullptr, {}, ledger);
  executor.fill_inputs();
  executor.run();
  double seconds = 0;
  for (int i = 0; i < 3; ++i) seconds += executor.run() / 3;
  return account(segments, executor.program(), 0).flops / seconds;
}

}  // namespace

const Backend& gpu_backend() {
  static const GpuBackend gpus;
  return gpus;
}

std::string transport_of_run(const std::string& name, Communicator& comm) {
  if (comm.max_of(describe_devices().unusable.empty() ? 0.0 : 1.0) > 0) return name;
  use_device(device_of_rank(comm));
  return resolve_device_transport(name, comm);
}

std::unique_ptr<CommOperations> operations_on_device(const std::string& transport,
                                                     Communicator& comm, int64_t max_bytes) {
  use_device(device_of_rank(comm));
  auto moves = make_device_transport(transport == "gpu" ? "auto" : transport, comm);
  const int64_t needed = 2 * max_bytes;  // all ranks refuse alike
  const double lacking = double(devices_in_use(comm).ranks_on_mine) * double(needed) -
                         0.95 * double(device_free_bytes());
  if (comm.max_of(lacking) > 0)
    throw UsageError(concat("--max-bytes ", format_bytes(double(max_bytes)),
                            ": two such buffers per rank do not fit into a GPU's memory\n  hint: "
                            "choose a smaller one"));
  return make_device_operations(std::move(moves), max_bytes);
}

std::vector<std::string> devices_of_ranks(Communicator& comm) {
  return comm.all_texts(describe_devices().devices.at(size_t(current_device())).uuid);
}

}  // namespace longnet
