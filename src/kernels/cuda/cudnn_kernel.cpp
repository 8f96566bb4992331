#include <algorithm>

#include "kernels/cuda/attend_plan.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

constexpr int64_t kMaxHeadDim = 128;

// Grids as cuDNN takes them: one key run each, masks by index. Grids that see no key are `blind`.
struct Sorted {
  std::vector<std::vector<StridedView>> rounds;  // round i: the i-th key run of grids with several
  std::vector<AttendGrid> blind;
};

// Returns the mask of `q` over `run`. Throws Error for one that is not a triangle.
ViewMask mask_of(const QueryRun& q, const KvRun& run, bool causal) {
  const ViewMask mask = causal ? causal_mask(q, run) : ViewMask::kNone;
  check(mask != ViewMask::kOther, "kernel cudnn: a causal mask of query rows at ", q.first_token,
        " + i ", q.token_step, " over keys at ", run.first_token, " + j ", run.token_step,
        " is not a triangle of the view; use kernel cuda");
  return mask;
}

Sorted sort_grids(std::span<const AttendGrid> grids, bool causal) {
  Sorted out;
  KvLists lists;
  for (const AttendGrid& grid : grids)
    for (const AttendTask& part :
         causal ? cut_at_diagonals(grid.task, lists) : std::vector{grid.task}) {
      if (part.q.rows == 0) continue;
      AttendGrid rows = grid;  // at the same distances
      rows.task = {.q = part.q, .kv = {}, .out = part.out};
      size_t round = 0;
      for (const KvRun run : part.kv) {
        if (run.rows == 0) continue;
        const ViewMask mask = mask_of(part.q, run, causal);
        if (mask == ViewMask::kEverything) continue;
        if (out.rounds.size() <= round) out.rounds.emplace_back();
        const auto views = strided_views(rows, run, mask);
        auto& all = out.rounds[round++];
        all.insert(all.end(), views.begin(), views.end());
      }
      if (round == 0) out.blind.push_back(rows);
    }
  return out;
}

// The views of one round, their 16-bit results, and how these reach the tasks' rows: the first
// round writes them, the others are merged into them.
Prepared prepare_round(const std::vector<StridedView>& views, bool first,
                       const DeviceAttendOptions& options, MemoryLedger& ledger) {
  Prepared work;
  const int64_t d = options.head_dim;
  int64_t rows = 0;
  for (const StridedView& view : views) rows += view.grid.size() * view.grid.task.q.rows;
  std::byte* o = work.workspace(rows * d * 2, ledger);
  PartialRun partial{.o_stride = d, .lse_stride = 1};  // the tasks' rows behind each other
  if (!first) {
    partial.o = reinterpret_cast<float*>(work.workspace(rows * d * int64_t{sizeof(float)}, ledger));
    partial.lse = reinterpret_cast<float*>(work.workspace(rows * int64_t{sizeof(float)}, ledger));
  }
  std::vector<std::pair<const SdpaPlan*, SdpaPointers>> calls;
  std::vector<MergeTask> merges;
  std::vector<WidenTask> widens;
  int64_t scratch_bytes = 0;
  for (StridedView view : views) {
    const AttendGrid target = view.grid;
    const int64_t n = target.task.q.rows;
    if (!first) {
      view.grid.task.out = partial;
      view.grid.lse_step = {n, n * target.count[0]};
      view.grid.o_step = {n * d, n * d * target.count[0]};
      partial.o += target.size() * n * d;
      partial.lse += target.size() * n;
    }
    const SdpaPlan& plan = sdpa_plan(sdpa_shape(view, d, options.element));
    calls.push_back({&plan,
                     {.q = target.task.q.q,
                      .k = view.kv.k,
                      .v = view.kv.v,
                      .o = o,
                      .lse = view.grid.task.out.lse}});
    scratch_bytes = std::max(scratch_bytes, plan.workspace_bytes());
    for (int64_t i = 0; i < target.size(); ++i, o += n * d * 2) {
      const PartialRun out = view.grid.at(i).out;
      widens.push_back({.from = o, .into = out, .rows = n});
      if (!first) merges.push_back({.from = out, .into = target.at(i).out, .rows = n});
    }
  }
  work.then([calls, scratch = work.workspace(scratch_bytes, ledger)](const Stream& stream) {
    for (const auto& [plan, at] : calls) plan->launch(at, scratch, stream);
  });
  Prepared widen = prepare_widen(widens, d, options.element, options.output_scale, ledger);
  if (options.keep_16_bits) return work;
  work.then(std::move(widen));
  if (!merges.empty()) work.then(prepare_merge(merges, MergeRule::kLse, d, ledger));
  return work;
}

class CudnnKernel final : public DeviceKernel {
 public:
  bool merges() const override { return false; }
  Prepared prepare(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                   MemoryLedger& ledger) const override {
    std::string refusal = why_head_dim_unsupported(options.head_dim, kMaxHeadDim);
    if (refusal.empty()) refusal = why_cudnn_absent();
    if (refusal.empty()) refusal = why_misaligned(grids);
    check(refusal.empty(), "kernel cudnn: ", refusal);
    check(!options.merge, "kernel cudnn does not merge");
    const Sorted sorted = sort_grids(grids, options.causal);
    check(!options.keep_16_bits || sorted.rounds.size() <= 1, "16-bit results of several key runs");
    Prepared work;
    for (const auto& round : sorted.rounds)
      work.then(prepare_round(round, &round == sorted.rounds.data(), options, ledger));
    if (!sorted.blind.empty())  // rows that see no key: O = 0, LSE = -inf
      work.then(make_cuda_kernel()->prepare(sorted.blind, options, ledger));
    return work;
  }
};

}  // namespace

std::unique_ptr<DeviceKernel> make_cudnn_kernel() { return std::make_unique<CudnnKernel>(); }

}  // namespace longnet
