// Attention tasks that lie at equal distances become one launch on a 4-D strided view.
//
// cuDNN wants [batch][heads][rows][head_dim] with any strides. A dilated branch is such a view:
// segments are equally far apart, and so are heads, as long as their offset moves with them.
//
//   H = 12, r = 4, 8 segments: 96 tasks -> 3 views of 8 segments x 4 heads (offsets 0 1 2 3)
//   H = 12, r = 1:             96 tasks -> 1 view  of 8 segments x 12 heads
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention_kernel.h"

namespace longnet {

// Which keys a row i sees of a run: all, those up to its own index, or those before it.
enum class ViewMask { kNone, kUpToOwn, kBeforeOwn };

// One query run against one key run.
struct ViewTask {
  QueryRun q;
  KvRun kv;
  PartialRun out;
  ViewMask mask = ViewMask::kNone;
};

// Strides in elements, of the two outer dimensions.
struct OuterStrides {
  int64_t inner = 0, outer = 0;
  bool operator==(const OuterStrides&) const = default;
};
struct StridedView {
  ViewTask first;  // of the inner x outer tasks
  int64_t inner = 1, outer = 1;
  OuterStrides q, k, v, o, lse;
  std::vector<size_t> tasks;  // indices into the list, inner fastest
};

// Every task is in exactly one view. Tasks without rows or keys are not allowed. Deterministic: the
// order of the list decides.
std::vector<StridedView> strided_views(std::span<const ViewTask> tasks);

// How a causal mask in global positions looks to rows and keys of these runs.
struct MaskKind {
  enum class Is { kEverything, kNothing, kMask, kOther } is;
  ViewMask mask = ViewMask::kNone;  // of kMask
};
MaskKind causal_mask_kind(const QueryRun& q, const KvRun& kv);

// A part of a causal task: some of its rows with the keys that they may see.
struct CutTask {
  QueryRun q;
  std::vector<KvRun> kv;
  PartialRun out;
};
// The task in parts whose masks are none, or one of the above: rows are cut where a run of keys
// begins behind them, runs where the first row stops to see all of them. Only where rows and keys
// are equally far apart; other masks stay kOther. Of 16-bit elements.
//
//   zigzag: rows at 8 .. 11, keys at 0 .. 15  ->  keys 0 .. 7 (all), 8 .. 15 (up to own)
std::vector<CutTask> cut_at_diagonals(const AttendTask& task);

}  // namespace longnet
