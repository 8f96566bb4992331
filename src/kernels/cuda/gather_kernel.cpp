#include <map>
#include <set>

#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

// Dense copies of every distinct run, and the tasks that read them.
class PreparedGather final : public PreparedAttend {
 public:
  PreparedGather(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                 const DeviceKernel& kernel, MemoryLedger& ledger) {
    std::vector<AttendTask> tasks;
    for (const AttendGrid& grid : grids)
      for (int64_t i = 0; i < grid.size(); ++i) tasks.push_back(grid.at(i));
    const int64_t d = options.head_dim, row_bytes = 2 * d;
    int64_t q_rows = 0, kv_rows = 0;
    std::map<std::pair<const void*, size_t>, int64_t> first_row;  // of key lists seen before
    for (const AttendTask& task : tasks) {
      q_rows += task.q.rows;
      if (task.kv.empty() || !first_row.emplace(key_of(task), kv_rows).second) continue;
      for (const KvRun run : task.kv) kv_rows += run.rows;
    }
    q_ = DeviceBuffer(ledger, "workspace", q_rows * row_bytes);
    k_ = DeviceBuffer(ledger, "workspace", kv_rows * row_bytes);
    v_ = DeviceBuffer(ledger, "workspace", kv_rows * row_bytes);
    o_ = DeviceBuffer(ledger, "workspace", q_rows * d * int64_t{sizeof(float)});
    lse_ = DeviceBuffer(ledger, "workspace", q_rows * int64_t{sizeof(float)});

    std::vector<PackTask> in, out, out_lse;
    std::vector<AttendGrid> dense;
    std::vector<std::vector<KvRun>> runs;
    runs.reserve(tasks.size());
    std::set<std::pair<const void*, size_t>> packed;
    int64_t q_at = 0;
    auto* const o = reinterpret_cast<float*>(o_.data());
    auto* const lse = reinterpret_cast<float*>(lse_.data());
    for (const AttendTask& task : tasks) {
      auto& list = runs.emplace_back();
      const bool again = task.kv.empty() || !packed.insert(key_of(task)).second;
      int64_t at = task.kv.empty() ? 0 : first_row.at(key_of(task));
      for (KvRun run : task.kv) {
        std::byte *const k = k_.data() + at * row_bytes, *const v = v_.data() + at * row_bytes;
        if (!again) {
          in.push_back({run.k, k, run.row_stride, d, run.rows});
          in.push_back({run.v, v, run.row_stride, d, run.rows});
        }
        at += run.rows;
        run.k = k;
        run.v = v;
        run.row_stride = d;
        list.push_back(run);
      }
      in.push_back({task.q.q, q_.data() + q_at * row_bytes, task.q.row_stride, d, task.q.rows});
      AttendTask copy = task;
      copy.q.q = q_.data() + q_at * row_bytes;
      copy.q.row_stride = d;
      copy.kv = list;
      copy.out = {o + q_at * d, lse + q_at, d, 1};
      dense.push_back({copy});
      out.push_back({copy.out.o, task.out.o, d, task.out.o_stride, task.q.rows});
      out_lse.push_back({copy.out.lse, task.out.lse, 1, task.out.lse_stride, task.q.rows});
      q_at += task.q.rows;
    }
    pack_ = prepare_pack(in, row_bytes, 2, ledger);
    attend_ = kernel.prepare(dense, options, ledger);
    scatter_ = prepare_pack(out, d * int64_t{sizeof(float)}, 4, ledger);
    scatter_lse_ = prepare_pack(out_lse, 4, 4, ledger);
  }

  void launch(const Stream& stream) const override {
    pack_.launch(stream);
    attend_->launch(stream);
    scatter_.launch(stream);
    scatter_lse_.launch(stream);
  }

 private:
  // Returns what identifies a task's keys: their first run and the number of runs. Tasks with the
  // same keys (many query runs of a segment) share one copy.
  static std::pair<const void*, size_t> key_of(const AttendTask& task) {
    return {task.kv[0].k, task.kv.size()};
  }

  DeviceBuffer q_, k_, v_, o_, lse_;
  PreparedRows pack_, scatter_, scatter_lse_;
  std::unique_ptr<PreparedAttend> attend_;
};

class GatherKernel final : public DeviceKernel {
 public:
  explicit GatherKernel(std::unique_ptr<DeviceKernel> dense) : dense_(std::move(dense)) {}
  std::string_view name() const override { return "gather"; }
  bool merges() const override { return false; }
  std::string why_unsupported(const DeviceAttendOptions& options) const override {
    return dense_->why_unsupported(options);
  }
  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendGrid> grids,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger& ledger) const override {
    check(!options.merge, "kernel gather does not merge");
    return std::make_unique<PreparedGather>(grids, options, *dense_, ledger);
  }

 private:
  std::unique_ptr<DeviceKernel> dense_;
};

}  // namespace

std::unique_ptr<DeviceKernel> make_gather_kernel(std::unique_ptr<DeviceKernel> dense) {
  return std::make_unique<GatherKernel>(std::move(dense));
}

}  // namespace longnet
