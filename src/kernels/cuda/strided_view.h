// Grids of attention tasks as cuDNN takes them: one query run against one key run, masks by index,
// on a 4-D strided view.
//
// cuDNN takes [batch][heads][rows][head_dim] with any strides. Segments, offsets, heads and
// sequences are four dimensions beside the rows: each place along the shorter ones is a view of its
// own.
//
//   H = 12, r = 4, 8 segments: a grid of 8 x 4 x 3 tasks -> 3 views of 8 x 4
//   H = 12, r = 1, 8 segments: a grid of 8 x 12 tasks    -> 1 view
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/device_kernel.h"

namespace longnet {

// The keys of a run that a mask leaves to row i: all, those with index <= i, those with index < i,
// or none. kOther: a mask that cuDNN does not have.
enum class ViewMask { kNone, kUpToOwn, kBeforeOwn, kEverything, kOther };

struct StridedView {
  AttendGrid grid;  // two dimensions; its tasks have one key run each, which is `kv`
  KvRun kv;
  ViewMask mask = ViewMask::kNone;
};
// The tasks of `grid` against the keys of `kv` alone.
std::vector<StridedView> strided_views(const AttendGrid& grid, const KvRun& kv, ViewMask mask);

// Parts of a view, of `most` tasks at most.
std::vector<StridedView> parts_of(const StridedView& view, int64_t most);

// Scaled-dot-product attention that a cuDNN plan is made for: [outer][inner][rows][head_dim]; Q, K,
// V and O in bf16, LSE in fp32; strides of the first three dimensions in elements. Lane stride 1.
struct SdpaShape {
  int64_t outer = 1, inner = 1, rows = 0, keys = 0, head_dim = 64;
  std::array<int64_t, 3> q{}, k{}, o{}, lse{};  // V: as K
  ViewMask mask = ViewMask::kNone;
  // Its backward pass: O, dO and dQ lie as `o`, dK and dV dense as [outer][inner][keys][head_dim],
  // in bf16.
  bool backward = false;
  bool any_order = false;  // for the sums of dQ, which then have other bits in each launch
  auto operator<=>(const SdpaShape&) const = default;
};

// Returns the shape of the launch that computes a view's tasks, with contiguous bf16 results. The
// stride of a dimension of one element does not matter, but cuDNN requires a positive one.
SdpaShape sdpa_shape(const StridedView& view, int64_t head_dim);
// Returns the shape of the launch of a view's backward pass, where LSE is dense as well.
SdpaShape sdpa_backward_shape(const StridedView& view, int64_t head_dim);

// Empty when every address that the strides reach is 16-byte aligned, given aligned pointers: cuDNN
// builds plans for others without an error.
std::string why_misaligned(const SdpaShape& shape);

// Returns the form that a causal mask in global positions takes over the indices of two runs.
ViewMask causal_mask(const QueryRun& q, const KvRun& kv);

// Cuts a causal task into parts: some of its rows with the keys that they may see (in `lists`),
// masked as kNone or by index. Rows are cut where a run of keys begins behind them, runs where the
// first row stops to see all of them. Only where rows and keys are equally far apart; other masks
// stay kOther. Elements have 16 bits.
//
//   zigzag: rows at 8 .. 11, keys at 0 .. 15  ->  keys 0 .. 7 (all), 8 .. 15 (up to own)
std::vector<AttendTask> cut_at_diagonals(const AttendTask& task, KvLists& lists);

}  // namespace longnet
