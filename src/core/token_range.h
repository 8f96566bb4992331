// Rows of the global sequence that lie at equal distances.
//
//   TokenRange{.first = 3, .stride = 4, .count = 3}  is the tokens 3, 7, 11.
//   A dense shard has stride 1; a dilated selection has stride = dilation_rate.
#pragma once
#include <algorithm>
#include <compare>
#include <cstdint>

namespace longnet {

struct TokenRange {
  int64_t first = 0, stride = 1, count = 0;
  int64_t operator[](int64_t i) const { return first + i * stride; }
  int64_t last() const { return first + (count - 1) * stride; }  // meaningless when empty
  bool empty() const { return count <= 0; }
  bool operator==(const TokenRange&) const = default;
};

// Half-open interval [begin, end) of tokens.
struct TokenInterval {
  int64_t begin = 0, end = 0;
  int64_t length() const { return std::max<int64_t>(0, end - begin); }
  bool empty() const { return begin >= end; }
  bool contains(int64_t t) const { return begin <= t && t < end; }
  bool contains(const TokenInterval& o) const {
    return o.empty() || (begin <= o.begin && o.end <= end);
  }
  auto operator<=>(const TokenInterval&) const = default;
};

inline TokenInterval intersect(TokenInterval a, TokenInterval b) {
  const TokenInterval c{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return c.empty() ? TokenInterval{c.begin, c.begin} : c;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The tokens of `range` that lie inside `within`.
inline TokenRange clip(const TokenRange& range, TokenInterval within) {
  if (range.empty() || within.empty()) return {range.first, range.stride, 0};
  const int64_t skip =
      within.begin > range.first ? ceil_div(within.begin - range.first, range.stride) : 0;
  const int64_t first = range[skip];
  const int64_t fit = first < within.end ? ceil_div(within.end - first, range.stride) : 0;
  return {first, range.stride,
          std::clamp<int64_t>(fit, 0, std::max<int64_t>(0, range.count - skip))};
}

// First token of part p when `length` tokens are cut into `parts` nearly equal, contiguous parts:
// the first length % parts of them have one token more. 10 tokens on 4 ranks: 0, 3, 6, 8, and 10.
inline int64_t part_begin(int64_t length, int64_t parts, int64_t p) {
  return p * (length / parts) + std::min(p, length % parts);
}
// The part that holds token `t`.
inline int64_t part_index(int64_t length, int64_t parts, int64_t t) {
  const int64_t size = length / parts, in_longer = length % parts * (size + 1);
  return t < in_longer ? t / (size + 1) : length % parts + (t - in_longer) / size;
}

}  // namespace longnet
