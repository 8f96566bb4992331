// Ranks that act together, in an order.
#pragma once
#include <compare>

namespace longnet {

using Rank = int;

// The ranks first, first + stride, ..., count of them. With inner_count > 0 they form a table of
// rows of inner_count ranks, outer_stride apart, and each row begins at its member inner_rotation.
// The list begins at its member `rotation`.
//
//   {.first = 8, .count = 4}                                                     8 9 10 11
//   {.first = 8, .count = 4, .rotation = 1}                                      9 10 11 8
//   {.first = 0, .stride = 2, .count = 4, .inner_count = 2, .outer_stride = 1}   0 2 1 3
//   ... and .inner_rotation = 1                                                  2 0 3 1
struct RankGroup {
  Rank first = 0;
  int stride = 1, count = 1;
  int inner_count = 0, outer_stride = 0;
  int rotation = 0, inner_rotation = 0;

  Rank operator[](int i) const {
    const int j = (i + rotation) % count;
    if (inner_count == 0) return first + j * stride;
    return first + ((j + inner_rotation) % inner_count) * stride + (j / inner_count) * outer_stride;
  }
  // Position of r, -1 when it is no member.
  int index_of(Rank r) const {
    const int table = inner_count == 0 ? 1 : count / inner_count;
    const int row = inner_count == 0 ? count : inner_count;
    for (int outer = 0; outer < table; ++outer) {
      const int distance = r - first - outer * outer_stride;
      if (distance < 0 || distance % stride != 0 || distance / stride >= row) continue;
      const int column = (distance / stride + row - inner_rotation) % row;
      return (outer * row + column + count - rotation) % count;
    }
    return -1;
  }
  auto operator<=>(const RankGroup&) const = default;
};

}  // namespace longnet
