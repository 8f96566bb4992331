// Ranks that act together.
#pragma once
#include <compare>

namespace longnet {

using Rank = int;

// The ranks first, first + stride, ..., count of them.
struct RankGroup {
  Rank first = 0;
  int stride = 1, count = 1;
  Rank operator[](int i) const { return first + i * stride; }
  int index_of(Rank r) const {  // -1 when r is no member
    const int i = (r - first) / stride;
    return r >= first && i < count && (*this)[i] == r ? i : -1;
  }
  auto operator<=>(const RankGroup&) const = default;
};

}  // namespace longnet
