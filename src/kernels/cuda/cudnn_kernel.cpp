// The `cudnn` kernel: plans of cuDNN's attention (cudnn_graph.h) over strided views of the rows of
// whole branches, forward and backward; nothing is packed for the forward pass.
#include <algorithm>
#include <utility>

#include "core/token_range.h"
#include "kernels/cuda/attend_plan.h"
#include "kernels/cuda/backward_plan.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

constexpr int64_t kMaxHeadDim = 128;
constexpr int64_t kElement = 2;  // bytes

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
    const SdpaPlan& plan = sdpa_plan(sdpa_shape(view, d));
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
  Prepared widen = prepare_widen(widens, d, options.output_scale, ledger);
  if (options.keep_16_bits) return work;
  work.then(std::move(widen));
  if (!merges.empty()) work.then(prepare_merge(merges, MergeRule::kLse, d, ledger));
  return work;
}

// ---- backward pass ----

// The grid with dQ in the place of O, and with the statistics, which are only read, in that of LSE.
AttendGrid with_gradients(const BackwardGrid& grid) {
  AttendGrid out = grid.attend;
  out.task.out = {.o = grid.grad_q,
                  .lse = const_cast<float*>(grid.statistics),
                  .o_stride = grid.attend.task.q.row_stride,
                  .lse_stride = grid.statistics_stride};
  for (size_t d = 0; d < out.o_step.size(); ++d) out.o_step[d] = out.q_step_bytes[d] / kElement;
  out.lse_step = grid.statistics_step;
  return out;
}

// One launch of cuDNN's backward pass: rows are made dense for it, its gradients are dense.
struct BackwardLaunch {
  const BackwardGrid* grid;
  StridedView view;
  const SdpaPlan* plan;

  static int64_t aligned(int64_t bytes) { return ceil_div(bytes, int64_t{256}) * 256; }
  int64_t task_bytes(int64_t rows, int64_t row_bytes) const {
    return view.grid.size() * rows * row_bytes;
  }
  int64_t queries_bytes(int64_t d) const { return task_bytes(view.grid.task.q.rows, d * kElement); }
  int64_t keys_bytes(int64_t d) const { return task_bytes(view.kv.rows, d * kElement); }
  int64_t lse_bytes() const { return aligned(task_bytes(view.grid.task.q.rows, sizeof(float))); }
  int64_t rows_bytes(int64_t d) const {
    return lse_bytes() + aligned(3 * queries_bytes(d) + 2 * keys_bytes(d));
  }
};

// The launches of all grids, in the order in which their sums are added: rows of dK and dV may be
// those of several launches, and of one task of each.
std::vector<BackwardLaunch> backward_launches(std::span<const BackwardGrid> grids,
                                              const DeviceAttendOptions& options) {
  // Where dQ is summed in one order, cuDNN keeps all scores of a launch in 16 bits.
  constexpr int64_t kMostScoreBytes = int64_t{1} << 30;
  std::vector<BackwardLaunch> launches;
  for (const BackwardGrid& grid : grids) {
    const AttendGrid rows = with_gradients(grid);
    const Sorted sorted = sort_grids({&rows, 1}, options.causal);
    for (const auto& round : sorted.rounds)
      for (const StridedView& view : round) {
        const int64_t queries = view.grid.task.q.rows, keys = view.kv.rows;
        check(queries > 1 && keys > 1, "kernel cudnn: a backward pass of ", queries,
              " query row(s) and ", keys, " key(s), and cuDNN has none of one; use kernel cuda");
        const int64_t most =
            options.any_order ? view.grid.size()
                              : std::max<int64_t>(1, kMostScoreBytes / (queries * keys * kElement));
        for (const StridedView& part : parts_of(view, most)) {
          SdpaShape shape = sdpa_backward_shape(part, options.head_dim);
          shape.any_order = options.any_order;
          launches.push_back({&grid, part, &sdpa_plan(shape)});
        }
      }
  }
  return launches;
}

struct BackwardSteps {
  Prepared rows, launch, sums;
};
struct BackwardScratch {
  std::byte *workspace, *rows;
};
BackwardSteps prepare_backward_launch(const BackwardLaunch& launch, BackwardScratch scratch,
                                      const DeviceAttendOptions& options, MemoryLedger& ledger) {
  const int64_t d = options.head_dim;
  const auto& [grid, view, plan] = launch;
  const auto take = [&](int64_t bytes) {
    return std::exchange(scratch.rows, scratch.rows + bytes);
  };
  const int64_t of_queries = launch.queries_bytes(d), of_keys = launch.keys_bytes(d);
  auto* const lse = reinterpret_cast<float*>(take(launch.lse_bytes()));
  std::byte *const o = take(of_queries), *const grad_out = take(of_queries);
  std::byte *const grad_q = take(of_queries), *const grad_k = take(of_keys);
  std::byte* const grad_v = take(of_keys);
  const int64_t n = view.grid.task.q.rows, keys = view.kv.rows;
  std::vector<SdpaRowsTask> rows;
  std::vector<PackTask> sums;
  for (int64_t i = 0; i < view.grid.size(); ++i) {
    const AttendTask task = view.grid.at(i);
    const KvRun run = KeyRuns(&view.kv, 1).moved(view.grid.place(i))[0];
    const int64_t at = i * n * d * kElement, at_key = i * keys * d * kElement;
    const int64_t query_bytes = bytes_between(grid->attend.task.q.q, task.q.q);
    rows.push_back({.grad_out = static_cast<const std::byte*>(grid->grad_out) + query_bytes,
                    .statistics = task.out.lse,
                    .grad_out_stride = task.q.row_stride,
                    .statistics_stride = task.out.lse_stride,
                    .into_grad_out = grad_out + at,
                    .into_o = o + at,
                    .into_lse = lse + i * n,
                    .rows = n});
    sums.push_back({grad_q + at, task.out.o, d, task.out.o_stride, n});
    const auto gradient_of = [&](const void* k_or_v) {
      return grid->grad_keys + bytes_between(grid->keys, k_or_v) / kElement;
    };
    sums.push_back({grad_k + at_key, gradient_of(run.k), d, run.row_stride, keys});
    sums.push_back({grad_v + at_key, gradient_of(run.v), d, run.row_stride, keys});
  }
  // S and dP are of dO itself: its factor f is taken out of dS = P (f dO V^T - delta) and of dV.
  const float factor = options.output_scale;
  BackwardSteps steps{.rows = prepare_sdpa_rows(rows, d, 1 / factor, ledger),
                      .launch = {},
                      .sums = prepare_add_widened(sums, d, factor, ledger)};
  const SdpaPointers at{.q = view.grid.task.q.q,
                        .k = view.kv.k,
                        .v = view.kv.v,
                        .o = o,
                        .lse = lse,
                        .grad_out = grad_out,
                        .grad_q = grad_q,
                        .grad_k = grad_k,
                        .grad_v = grad_v};
  steps.launch.then([plan = plan, at, workspace = scratch.workspace](const Stream& stream) {
    plan->launch(at, workspace, stream);
  });
  return steps;
}

// Empty where cuDNN's graph with dQ summed in one order has the same bits in every launch. From
// compute capability 10.0 on it takes other engines for that.
std::string why_not_in_order() {
  static const DeviceReport report = describe_devices();
  const DeviceInfo& device = report.devices.at(size_t(current_device()));
  if (device.major < 10) return "";
  return concat(
      "its backward pass has the same bits in every launch up to compute capability 9.0, ",
      device.name, " has ", device.major, ".", device.minor, ": use kernel cuda");
}

class CudnnKernel final : public DeviceKernel {
 public:
  bool merges() const override { return false; }
  Prepared prepare(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                   MemoryLedger& ledger) const override {
    require(grids, options);
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

  Prepared prepare_backward(std::span<const BackwardGrid> grids, const DeviceAttendOptions& options,
                            MemoryLedger& ledger) const override {
    require(grids, options);
    const std::string refusal = options.any_order ? "" : why_not_in_order();
    check(refusal.empty(), "kernel cudnn: ", refusal);
    const auto launches = backward_launches(grids, options);
    // Launches share their rows, but where cuDNN is timed alone on rows that are there.
    const bool alone = options.keep_16_bits;
    int64_t workspace_bytes = 0, rows_bytes = 0;
    for (const BackwardLaunch& launch : launches) {
      const int64_t bytes = launch.rows_bytes(options.head_dim);
      rows_bytes = alone ? rows_bytes + bytes : std::max(rows_bytes, bytes);
      workspace_bytes = std::max(workspace_bytes, launch.plan->workspace_bytes());
    }
    Prepared work;
    BackwardScratch scratch{.workspace = work.workspace(workspace_bytes, ledger),
                            .rows = work.workspace(rows_bytes, ledger)};
    for (const BackwardLaunch& launch : launches) {
      BackwardSteps steps = prepare_backward_launch(launch, scratch, options, ledger);
      if (!alone) {
        work.then(std::move(steps.rows));
        work.then(std::move(steps.launch));
        work.then(std::move(steps.sums));
        continue;
      }
      const Stream stream;
      steps.rows.launch(stream);
      stream.synchronize();
      work.then(std::move(steps.launch));
      scratch.rows += launch.rows_bytes(options.head_dim);
    }
    return work;
  }

 private:
  template <class Grid>
  static void require(std::span<const Grid> grids, const DeviceAttendOptions& options) {
    std::string refusal = why_head_dim_unsupported(options.head_dim, kMaxHeadDim);
    if (refusal.empty()) refusal = why_cudnn_absent();
    if (refusal.empty()) refusal = why_misaligned(grids);
    check(refusal.empty(), "kernel cudnn: ", refusal);
  }
};

}  // namespace

std::unique_ptr<DeviceKernel> make_cudnn_kernel() { return std::make_unique<CudnnKernel>(); }

}  // namespace longnet
