#include "run/backend.h"

#include <algorithm>

#include "comm/host_transport.h"
#include "comm/threads/thread_world.h"
#include "execute/bound_program.h"
#include "execute/program_executor.h"
#include "kernels/attention_kernel.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/device_model.h"
#include "measure/machine_load.h"
#include "measure/rank_place.h"
#include "measure/resident_memory.h"
#include "run/fill_record.h"
#include "run/rank_clock.h"
#include "schedule/accounting.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// Measuring on the cores of the host: ranks are threads or processes, timed by their steady clocks.
class HostSession final : public PointSession {
 public:
  HostSession(const PointParams& p, double peak_flops_per_thread, Communicator& comm)
      : comm_(comm),
        places_(gather(comm, this_place())),
        clock_(comm, places_),
        kernel_(make_kernel(p.kernel)),
        model_kernel_(make_cpu_model_kernel()),
        params_(p),
        threads_(p.threads),
        cores_(usable_cores(places_, p.threads)),
        // Products of layers are multiply-adds, whatever attends.
        peak_over_fma_(has_layers(p.scope) ? 1 : peak_over_fma(p.kernel, p.problem.dtype)),
        peak_flops_per_thread_(peak_flops_per_thread) {
    worker_ = make_cpu_row_worker();
    comm.resting_barrier();  // nobody allocates yet
    if (!in_one_process() || comm.rank() == 0) resident_.emplace();
    comm.resting_barrier();
  }

  std::string_view transport() const override { return comm_.transport(); }
  double peak_flops() const override { return peak_over_fma_ * peak_flops_per_thread_ * cores_; }
  double peak_now(double seconds) override {
    double flops = 0;
    const double took = time([&] {
      flops = run_fma(threads_, seconds * peak_flops_per_thread_ * cores_ / comm_.size());
      return 0.0;
    });
    return peak_over_fma_ * flops * comm_.size() / took;
  }
  void record_machine(PointRecord& record) const override {
    record.metrics["usable_cores"] = cores_;
  }
  void bind(const Schedule& schedule) override {
    executor_.reset();
    ledger_ = {};
    adopt(std::make_unique<ProgramExecutor>(schedule, *kernel_, threads_, comm_, ledger_,
                                            model_kernel_.get()),
          params_);
  }
  const CommCounters& counters() const override { return comm_.counters(); }
  void reset_counters() override { comm_.reset_counters(); }
  SampleHooks sample_hooks() override {
    load_.emplace(cpus_here(places_));
    return clock_.hooks([this] { executor_->run(); });
  }
  std::string_view reduction() const override { return clock_.reduction(); }
  double time(const std::function<double()>& run) override {
    return clock_.time([&] { run(); });
  }
  // Records what others used of the cores, and the growth of each process's resident memory: the
  // system's view beside the ledgers'.
  void record_conditions(PointRecord& record) override {
    if (const double busy = busy_share(*load_, comm_); busy >= 0)
      record.metrics["busy_share"] = busy;
    const double mine = double(ledger_.peak_bytes()), all = comm_.sum_of(mine);
    const std::optional<int64_t> growth = resident_ ? resident_->bytes() : std::nullopt;
    std::vector<int64_t> figures;
    if (growth) figures = {*growth, int64_t(in_one_process() ? all : mine)};
    for (const auto& told : gather(comm_, figures))
      if (!told.empty()) set_resident_memory(record, told[0], told[1]);
  }

 private:
  bool in_one_process() const { return comm_.transport() == kThreadTransport; }

  Communicator& comm_;
  std::vector<RankPlace> places_;
  RankClock clock_;
  std::unique_ptr<AttentionKernel> kernel_;
  std::unique_ptr<ModelKernel> model_kernel_;
  PointParams params_;
  int threads_, cores_;
  double peak_over_fma_, peak_flops_per_thread_;
  std::optional<OtherLoad> load_;
  std::optional<ResidentGrowth> resident_;  // this process's, kept by one of its ranks
};

class HostBackend final : public Backend {
 public:
  bool on_gpu() const override { return false; }
  std::string why_kernel_unsupported(const PointParams& p) const override {
    return make_kernel(p.kernel)->why_unsupported(attend_options(p));
  }
  int64_t workspace_bytes(const PointParams& p, int threads) const override {
    // A walk makes the output before a backward pass.
    const Pass pass = is_virtual(p) && has_backward(p.pass) ? Pass::kForwardBackward : p.pass;
    const int64_t bytes = make_kernel(p.kernel)->workspace_bytes(attend_options(p), threads, pass);
    return p.scope == Scope::kAttention
               ? bytes
               : std::max(bytes, make_cpu_model_kernel()->workspace_bytes(threads));
  }
  double fill_s_per_value() const override { return 3e-8; }
  std::unique_ptr<PointSession> open(const PointPlan& plan, const RunnerOptions& options,
                                     Communicator& comm) const override {
    return std::make_unique<HostSession>(plan.point.params, options.peak_flops_per_thread, comm);
  }
  std::unique_ptr<UnitWalk> make_walk(const PointParams& p, UnitWalk::MakeSchedule make_schedule,
                                      MemoryLedger& ledger) const override {
    return make_virtual_walk(p.problem, std::move(make_schedule), make_kernel(p.kernel), p.threads,
                             ledger);
  }
  double attend_rate(const PointParams& p) const override {
    AttentionProblem one_head = p.problem;
    one_head.num_heads = one_head.num_kv_heads = 1;
    const Schedule segments = dense_segments(one_head, int64_t{4} * p.threads);
    const auto kernel = make_kernel(p.kernel);
    double rate = 0;
    run_on_threads(1, [&](Communicator& comm) {
      MemoryLedger ledger;
      ProgramExecutor executor(segments, *kernel, p.threads, comm, ledger);
      rate = attend_rate_of(executor);
    });
    return rate;
  }
  double peak_now(const PointParams& p, double seconds,
                  const RunnerOptions& options) const override {
    const double begin = steady_seconds();
    const double flops =
        run_fma(p.threads, seconds * options.peak_flops_per_thread * cores_here(p.threads));
    return peak_over_fma(p.kernel, p.problem.dtype) * flops / (steady_seconds() - begin);
  }
  void record_walking_device(PointRecord& record) const override {
    record.metrics["usable_cores"] = cores_here(record.params.threads);
  }
  bool rounds_probabilities(const PointParams& p) const override {
    return make_kernel(p.kernel)->rounds_probabilities(p.problem.dtype);
  }

 private:
  static int cores_here(int threads) {
    const RankPlace here = this_place();
    return usable_cores({&here, 1}, threads);
  }
};

}  // namespace

Schedule dense_segments(AttentionProblem problem, int64_t count) {
  constexpr int64_t kRows = 2048;
  problem.seq_len = kRows;
  problem.batch = count;
  problem.causal = false;
  return find_algorithm("local").make({problem, dense_pattern(kRows), {kRows, 1}});
}

double attend_rate_of(Executor& executor) {
  constexpr int kRuns = 3;
  executor.fill_inputs();
  executor.run();  // warms up
  double seconds = 0;
  for (int i = 0; i < kRuns; ++i) seconds += executor.run();
  return kRuns * account(executor.sharded(), executor.program(), 0).flops / seconds;
}

std::string GpuPlanning::why_kernel_unsupported(const PointParams& p) const {
  const int64_t width = p.problem.num_heads * p.problem.head_dim;
  if (has_layers(p.scope) && width > kMostNormColumns)
    return concat("layer norm of ", width, " columns: the GPU's kernels hold ", kMostNormColumns);
  return why_device_kernel_unsupported(p.kernel, attend_options(p), p.pass);
}

// Workspace that a model's tasks share: the size that the largest task needs. Attends of libraries
// take more.
int64_t GpuPlanning::workspace_bytes(const PointParams& p, int) const {
  if (!has_layers(p.scope)) return 0;
  const Schedule schedule = make_schedule(p);
  const ShardedProblem& sharded = schedule.sharded;
  int64_t most = 0;
  std::byte anywhere{};  // only the tasks' shapes are read
  for (const Rank r : accounted_ranks(sharded.layout.world_size(), max_accounted(p))) {
    const RankProgram program = schedule.program(r);
    BoundProgram::Memory memory;
    for (const Slot& slot : program.slots) memory.emplace_back(&anywhere, size_t(slot.bytes));
    for (const Op& op : program.ops)
      for (const ModelTask& task : model_tasks(sharded, r, program, op, memory))
        most = std::max(most, model_workspace_bytes(task));
  }
  return most;
}

std::string GpuPlanning::why_kernel_absent(const PointParams& p) const {
  const std::string why = why_device_kernel_absent(p.kernel);
  return why.empty() && has_layers(p.scope) ? why_device_model_absent() : why;
}

const Backend& backend_of(std::string_view kernel) {
  static const HostBackend host;
  return is_device_kernel(kernel) ? gpu_backend() : host;
}

}  // namespace longnet
