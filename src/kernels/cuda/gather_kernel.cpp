// The `gather` kernel: packs the strided keys of each task into dense rows, as frameworks do, and
// has another kernel attend to these.
#include <map>

#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

// Identifies a task's keys by their first run and the number of runs. Tasks with the same keys
// (many query runs of a segment) share one copy.
using KeysId = std::pair<const void*, size_t>;
KeysId id_of(const KeyRuns& keys) { return {keys[0].k, keys.size()}; }

struct DenseKeys {
  KeyRuns from;
  int64_t first_row;
};

class GatherKernel final : public DeviceKernel {
 public:
  explicit GatherKernel(std::unique_ptr<DeviceKernel> dense) : dense_(std::move(dense)) {}
  bool merges() const override { return false; }
  Prepared prepare(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                   MemoryLedger& ledger) const override {
    check(!options.merge, "kernel gather does not merge");
    const int64_t d = options.head_dim, row_bytes = 2 * d;
    std::vector<AttendTask> tasks;
    for (const AttendGrid& grid : grids)
      for (int64_t i = 0; i < grid.size(); ++i) tasks.push_back(grid.at(i));
    int64_t q_rows = 0, kv_rows = 0;
    std::map<KeysId, DenseKeys> copies;
    for (const AttendTask& task : tasks) {
      q_rows += task.q.rows;
      if (task.kv.empty() || !copies.emplace(id_of(task.kv), DenseKeys{task.kv, kv_rows}).second)
        continue;
      for (const KvRun run : task.kv) kv_rows += run.rows;
    }
    Prepared work;
    std::byte* q = work.workspace(q_rows * row_bytes, ledger);
    std::byte* const k = work.workspace(kv_rows * row_bytes, ledger);
    std::byte* const v = work.workspace(kv_rows * row_bytes, ledger);
    auto* o = reinterpret_cast<float*>(work.workspace(q_rows * d * int64_t{sizeof(float)}, ledger));
    auto* lse = reinterpret_cast<float*>(work.workspace(q_rows * int64_t{sizeof(float)}, ledger));

    std::vector<PackTask> in, out, out_lse;
    for (const auto& [id, keys] : copies) {
      int64_t at = keys.first_row * row_bytes;
      for (const KvRun run : keys.from) {
        in.push_back({run.k, k + at, run.row_stride, d, run.rows});
        in.push_back({run.v, v + at, run.row_stride, d, run.rows});
        at += run.rows * row_bytes;
      }
    }
    std::vector<AttendGrid> dense;
    KvLists lists;
    for (const AttendTask& task : tasks) {
      std::vector<KvRun>& runs = lists.emplace_back(task.kv.list());
      int64_t at = runs.empty() ? 0 : copies.at(id_of(task.kv)).first_row * row_bytes;
      for (KvRun& run : runs) {
        run.k = k + at;
        run.v = v + at;
        run.row_stride = d;
        at += run.rows * row_bytes;
      }
      AttendTask copy{.q = task.q, .kv = runs, .out = {o, lse, d, 1}};
      copy.q.q = q;
      copy.q.row_stride = d;
      dense.push_back({copy});
      const int64_t rows = task.q.rows;
      in.push_back({task.q.q, q, task.q.row_stride, d, rows});
      out.push_back({o, task.out.o, d, task.out.o_stride, rows});
      out_lse.push_back({lse, task.out.lse, 1, task.out.lse_stride, rows});
      q += rows * row_bytes;
      o += rows * d;
      lse += rows;
    }
    work.then(prepare_pack(in, Conversion::kNone, d, 2, ledger));
    work.then(dense_->prepare(dense, options, ledger));
    work.then(prepare_pack(out, Conversion::kNone, d, 4, ledger));
    work.then(prepare_pack(out_lse, Conversion::kNone, 1, 4, ledger));
    return work;
  }

 private:
  std::unique_ptr<DeviceKernel> dense_;
};

}  // namespace

std::unique_ptr<DeviceKernel> make_gather_kernel(std::unique_ptr<DeviceKernel> dense) {
  return std::make_unique<GatherKernel>(std::move(dense));
}

}  // namespace longnet
