#include <algorithm>

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/tile_plan.h"

namespace longnet {
namespace {

constexpr int64_t kMaxHeadDim = 128;

// Grids as cuDNN takes them: one key run each, masks by index. Grids that see no key are `blind`.
struct Sorted {
  std::vector<std::vector<StridedView>> rounds;  // round i: the i-th key run of grids with several
  std::vector<AttendGrid> blind;
};

// Returns the kind of mask of `q` over `run`. Throws Error for a mask that is not a triangle.
MaskKind mask_kind(const QueryRun& q, const KvRun& run, bool causal) {
  if (!causal) return {MaskKind::Is::kEverything};
  const MaskKind kind = causal_mask_kind(q, run);
  check(kind.is != MaskKind::Is::kOther, "kernel cudnn: a causal mask of query rows at ",
        q.first_token, " + i ", q.token_step, " over keys at ", run.first_token, " + j ",
        run.token_step, " is not a triangle of the view; use kernel cuda");
  return kind;
}

std::vector<CutTask> parts_of(const AttendTask& task, bool causal) {
  if (causal) return cut_at_diagonals(task);
  return {{.q = task.q, .kv = task.kv.list(), .out = task.out}};
}

Sorted sort_grids(std::span<const AttendGrid> grids, bool causal) {
  Sorted out;
  for (const AttendGrid& grid : grids)
    for (const CutTask& part : parts_of(grid.task, causal)) {
      if (part.q.rows == 0) continue;
      AttendGrid rows = grid;  // at the same distances
      rows.task = {.q = part.q, .kv = {}, .out = part.out};
      size_t round = 0;
      for (const KvRun& run : part.kv) {
        if (run.rows == 0) continue;
        const MaskKind kind = mask_kind(part.q, run, causal);
        if (kind.is == MaskKind::Is::kNothing) continue;
        if (out.rounds.size() <= round) out.rounds.emplace_back();
        const auto views = strided_views(rows, run, kind.mask);
        auto& all = out.rounds[round++];
        all.insert(all.end(), views.begin(), views.end());
      }
      if (round == 0) out.blind.push_back(rows);
    }
  return out;
}

// The views of one round, their 16-bit results, and how these reach the tasks' rows.
class Round {
 public:
  // The first round writes the results, the others are merged into them.
  Round(const std::vector<StridedView>& views, bool first, const DeviceAttendOptions& options,
        MemoryLedger& ledger) {
    const int64_t d = options.head_dim;
    int64_t rows = 0;
    for (const StridedView& view : views) rows += view.grid.size() * view.grid.task.q.rows;
    o_ = DeviceBuffer(ledger, "workspace", rows * d * 2);
    if (!first) {
      partial_o_ = DeviceBuffer(ledger, "workspace", rows * d * int64_t{sizeof(float)});
      partial_lse_ = DeviceBuffer(ledger, "workspace", rows * int64_t{sizeof(float)});
    }
    std::vector<MergeTask> merges;
    std::vector<WidenTask> widens;
    int64_t at = 0, workspace = 0;
    for (StridedView view : views) {
      const AttendGrid target = view.grid;
      const int64_t n = target.task.q.rows;
      if (!first) {  // the tasks' rows behind each other
        view.grid.task.out = {reinterpret_cast<float*>(partial_o_.data()) + at * d,
                              reinterpret_cast<float*>(partial_lse_.data()) + at, d, 1};
        view.grid.lse_step = {n, n * target.count[0]};
        view.grid.o_step = {n * d, n * d * target.count[0]};
      }
      add_view(view, options, at);
      workspace = std::max(workspace, views_.back().plan.workspace_bytes());
      for (int64_t i = 0; i < target.size(); ++i, at += n) {
        const PartialRun out = view.grid.at(i).out;
        widens.push_back({.from = o_.data() + at * d * 2, .into = out, .rows = n});
        if (!first) merges.push_back({.from = out, .into = target.at(i).out, .rows = n});
      }
    }
    workspace_ = DeviceBuffer(ledger, "workspace", workspace);
    widen_ = prepare_widen(
        widens, d,
        options.element == DeviceElement::kFloat16 ? StoredAs::kFloat16 : StoredAs::kBFloat16,
        options.output_scale, ledger);
    if (!merges.empty()) merge_ = prepare_merge(merges, MergeRule::kLse, d, ledger);
  }

  void launch(const Stream& stream, bool only_attend) const {
    for (const View& view : views_) view.plan.launch(view.at, workspace_.data(), stream);
    if (only_attend) return;
    widen_.launch(stream);
    merge_.launch(stream);
  }

 private:
  struct View {
    const SdpaPlan& plan;
    SdpaPointers at;
  };

  // Results from row `at` of o_ on.
  void add_view(const StridedView& view, const DeviceAttendOptions& options, int64_t at) {
    const SdpaShape shape = sdpa_shape(view, options.head_dim, options.element);
    views_.push_back({sdpa_plan(shape),
                      {.q = view.grid.task.q.q,
                       .k = view.kv.k,
                       .v = view.kv.v,
                       .o = o_.data() + at * options.head_dim * 2,
                       .lse = view.grid.task.out.lse}});
  }

  DeviceBuffer o_, partial_o_, partial_lse_, workspace_;
  std::vector<View> views_;
  PreparedRows widen_, merge_;
};

class PreparedCudnn final : public PreparedAttend {
 public:
  PreparedCudnn(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                MemoryLedger& ledger)
      : only_attend_(options.keep_16_bits) {
    const Sorted sorted = sort_grids(grids, options.causal);
    check(!only_attend_ || sorted.rounds.size() <= 1, "16-bit results of several key runs");
    for (size_t i = 0; i < sorted.rounds.size(); ++i)
      rounds_.push_back(std::make_unique<Round>(sorted.rounds[i], i == 0, options, ledger));
    if (!sorted.blind.empty()) blind_ = make_cuda_kernel()->prepare(sorted.blind, options, ledger);
  }
  void launch(const Stream& stream) const override {
    for (const auto& round : rounds_) round->launch(stream, only_attend_);
    if (blind_) blind_->launch(stream);
  }

 private:
  bool only_attend_;
  std::vector<std::unique_ptr<Round>> rounds_;
  std::unique_ptr<PreparedAttend> blind_;  // rows that see no key: O = 0, LSE = -inf
};

class CudnnKernel final : public DeviceKernel {
 public:
  std::string_view name() const override { return "cudnn"; }
  bool merges() const override { return false; }
  std::string why_unsupported(const DeviceAttendOptions& options) const override {
    return why_head_dim_unsupported(options.head_dim, kMaxHeadDim);
  }
  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendGrid> grids,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger& ledger) const override {
    std::string refusal = why_unsupported(options);
    if (refusal.empty()) refusal = why_cudnn_absent();
    if (refusal.empty()) refusal = why_misaligned(grids);
    check(refusal.empty(), "kernel cudnn: ", refusal);
    check(!options.merge, "kernel cudnn does not merge");
    return std::make_unique<PreparedCudnn>(grids, options, ledger);
  }
};

}  // namespace

std::unique_ptr<DeviceKernel> make_cudnn_kernel() { return std::make_unique<CudnnKernel>(); }

}  // namespace longnet
