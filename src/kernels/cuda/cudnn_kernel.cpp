#include "kernels/cuda/cudnn_kernel.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sdpa_shape.h"
#include "kernels/cuda/tile_plan.h"

namespace longnet {
namespace {

constexpr int64_t kMaxHeadDim = 128;

// Tasks as cuDNN takes them: one key run each, masks by index. Tasks that see nothing go to
// `blind`.
struct Sorted {
  std::vector<std::vector<ViewTask>> rounds;  // round i: the i-th key run of tasks with several
  std::vector<AttendTask> blind;
};

ViewTask view_task(const CutTask& task, const KvRun& run, bool causal, bool& sees) {
  ViewTask view{.q = task.q, .kv = run, .out = task.out};
  sees = true;
  if (!causal) return view;
  const MaskKind kind = causal_mask_kind(task.q, run);
  check(kind.is != MaskKind::Is::kOther, "kernel cudnn: a causal mask of query rows at ",
        task.q.first_token, " + i ", task.q.token_step, " over keys at ", run.first_token, " + j ",
        run.token_step, " is not a triangle of the view; use kernel cuda");
  sees = kind.is != MaskKind::Is::kNothing;
  view.mask = kind.mask;
  return view;
}

std::vector<CutTask> parts_of(const AttendTask& task, bool causal) {
  if (causal) return cut_at_diagonals(task);
  return {{.q = task.q, .kv = {task.kv.begin(), task.kv.end()}, .out = task.out}};
}

Sorted sort_tasks(std::span<const AttendTask> tasks, bool causal) {
  Sorted out;
  for (const AttendTask& task : tasks)
    for (const CutTask& part : parts_of(task, causal)) {
      if (part.q.rows == 0) continue;
      size_t round = 0;
      for (const KvRun& run : part.kv) {
        bool sees = false;
        if (run.rows == 0) continue;
        const ViewTask view = view_task(part, run, causal, sees);
        if (!sees) continue;
        if (out.rounds.size() <= round) out.rounds.emplace_back();
        out.rounds[round++].push_back(view);
      }
      if (round == 0) out.blind.push_back({.q = part.q, .kv = {}, .out = part.out});
    }
  return out;
}

// The views of one round, their 16-bit results, and how these reach the tasks' rows.
class Round {
 public:
  // The first round writes the results, the others are merged into them.
  Round(const std::vector<ViewTask>& tasks, bool first, const DeviceAttendOptions& options,
        MemoryLedger& ledger) {
    const int64_t d = options.head_dim;
    int64_t rows = 0;
    for (const ViewTask& task : tasks) rows += task.q.rows;
    o_ = DeviceBuffer(ledger, "workspace", rows * d * 2);
    if (!first) {
      partial_o_ = DeviceBuffer(ledger, "workspace", rows * d * int64_t{sizeof(float)});
      partial_lse_ = DeviceBuffer(ledger, "workspace", rows * int64_t{sizeof(float)});
    }
    std::vector<ViewTask> placed = tasks;
    std::vector<MergeTask> merges;
    int64_t at = 0;
    for (ViewTask& task : placed) {
      const PartialRun target = task.out;
      if (!first) {
        task.out = {reinterpret_cast<float*>(partial_o_.data()) + at * d,
                    reinterpret_cast<float*>(partial_lse_.data()) + at, d, 1};
        merges.push_back({.from = task.out, .into = target, .rows = task.q.rows});
      }
      at += task.q.rows;
    }
    build_views(placed, options, ledger);
    if (!merges.empty()) merge_ = std::make_unique<DeviceMerge>(merges, MergeRule::kLse, d, ledger);
  }

  void launch(const Stream& stream, bool only_attend) const {
    for (const View& view : views_) view.plan->launch(view.at, workspace_.data(), stream);
    if (only_attend) return;
    widen_->launch(stream);
    if (merge_) merge_->launch(stream);
  }

 private:
  struct View {
    std::shared_ptr<const SdpaPlan> plan;
    SdpaPointers at;
  };

  void build_views(const std::vector<ViewTask>& tasks, const DeviceAttendOptions& options,
                   MemoryLedger& ledger) {
    const int device = current_device();
    std::vector<WidenTask> widens;
    int64_t at = 0, workspace = 0;
    for (const StridedView& view : strided_views(tasks)) {
      const SdpaShape shape = sdpa_shape(view, options.head_dim, options.element);
      std::byte* const o = o_.data() + at * options.head_dim * 2;
      views_.push_back({cached_plan(shape, device),
                        {.q = view.first.q.q,
                         .k = view.first.kv.k,
                         .v = view.first.kv.v,
                         .o = o,
                         .lse = view.first.out.lse}});
      workspace = std::max(workspace, views_.back().plan->workspace_bytes());
      int64_t row = at;
      for (const size_t i : view.tasks) {
        widens.push_back({.from = o_.data() + row * options.head_dim * 2,
                          .into = tasks[i].out,
                          .rows = tasks[i].q.rows});
        row += tasks[i].q.rows;
      }
      at = row;
    }
    workspace_ = DeviceBuffer(ledger, "workspace", workspace);
    widen_ = std::make_unique<DeviceWiden>(
        widens, options.head_dim,
        options.element == DeviceElement::kFloat16 ? StoredAs::kFloat16 : StoredAs::kBFloat16,
        options.output_scale, ledger);
  }

  DeviceBuffer o_, partial_o_, partial_lse_, workspace_;
  std::vector<View> views_;
  std::unique_ptr<DeviceWiden> widen_;
  std::unique_ptr<DeviceMerge> merge_;
};

class PreparedCudnn final : public PreparedAttend {
 public:
  PreparedCudnn(std::span<const AttendTask> tasks, const DeviceAttendOptions& options,
                MemoryLedger& ledger)
      : only_attend_(options.keep_16_bits) {
    const Sorted sorted = sort_tasks(tasks, options.causal);
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
    const int64_t d = options.head_dim;
    if (d < 8 || d > kMaxHeadDim || d % 8 != 0)
      return concat("head_dim must be a multiple of 8 from 8 to ", kMaxHeadDim, ", is ", d);
    return "";
  }
  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendTask> tasks,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger& ledger) const override {
    std::string refusal = why_unsupported(options);
    if (refusal.empty()) refusal = why_cudnn_absent();
    if (refusal.empty()) refusal = why_misaligned(tasks);
    check(refusal.empty(), "kernel cudnn: ", refusal);
    check(!options.merge, "kernel cudnn does not merge");
    return std::make_unique<PreparedCudnn>(tasks, options, ledger);
  }
};

}  // namespace

std::unique_ptr<DeviceKernel> make_cudnn_kernel() { return std::make_unique<CudnnKernel>(); }

}  // namespace longnet
