// Ranks that act together, in an order, and the ways in which they share tokens.
#pragma once
#include <compare>

#include "core/enum_names.h"

namespace longnet {

using Rank = int;

// kContiguous: rank p owns the p-th of P nearly equal parts.
// kZigzag:     ring position i of R owns the chunks i and 2R - 1 - i of 2R, which balances a causal
//              mask; the P / R ranks of a position share its tokens in order. (R = P in Llama 3 and
//              in ring-flash-attention.)
// kStriped:    rank p owns the tokens p, p + P, ... (Brandon et al., Striped Attention,
//              arXiv 2311.09431).
//
//   owners of 16 tokens, P = 4:   contiguous           0000 1111 2222 3333
//                                 zigzag, R = 4        0011 2233 3322 1100
//                                 zigzag, R = 2        0000 2222 3333 1111
//                                 striped              0123 0123 0123 0123
enum class LayoutKind { kContiguous, kZigzag, kStriped };
constexpr auto texts_of(LayoutKind) { return texts("contiguous", "zigzag", "striped"); }

// The ranks that gather a branch's rows: those that share a segment, or the whole world.
enum class GatherScope { kSegmentGroup, kWholeWorld };
constexpr auto texts_of(GatherScope) { return texts("segment_group", "world"); }

// The ranks first, first + stride, ..., count of them. With inner_count > 0 they form a table of
// rows of inner_count ranks, outer_stride apart, and each row begins at its member inner_rotation.
// The list begins at its member `rotation`. A stride of 0 names one rank, `count` times.
//
//   {.first = 8, .count = 4}                                                     8 9 10 11
//   {.first = 8, .count = 4, .rotation = 1}                                      9 10 11 8
//   {.first = 8, .stride = 0, .count = 4}                                        8 8 8 8
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
  // Position of r, its first one; -1 when it is no member.
  int index_of(Rank r) const {
    if (stride == 0) return r == first ? 0 : -1;
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

// All ranks of a program: replicas, one after the other, of ranks that share a sequence; and in the
// place of each of these, side by side, ranks that have the same tokens and split the heads. 12
// ranks, sequence 3, replicas 2, head groups 2: rank 3 is in replica 0, has the tokens at position
// 1, as rank 2 does, and the second half of the heads; 1 3 5 share a sequence.
struct RankGrid {
  int sequence = 1, replicas = 1, head_groups = 1;
  int count() const { return sequence * replicas * head_groups; }
  int position(Rank r) const { return r / head_groups % sequence; }  // in its sequence
  int replica(Rank r) const { return r / head_groups / sequence; }
  int head_group(Rank r) const { return r % head_groups; }
  RankGroup everyone() const { return {.count = count()}; }
  // Ranks with the same tokens; ranks with the same heads, and so the same weights.
  RankGroup same_tokens(Rank r) const { return {.first = r - head_group(r), .count = head_groups}; }
  RankGroup same_heads(Rank r) const {
    return {.first = head_group(r), .stride = head_groups, .count = count() / head_groups};
  }
  // Rank p of the sequence of r, among those with the same heads; and a group of such ranks.
  Rank placed(Rank p, Rank r) const {
    return (replica(r) * sequence + p) * head_groups + head_group(r);
  }
  RankGroup placed(RankGroup g, Rank r) const {
    g.first = placed(g.first, r);
    if (g.count > 1) g.stride *= head_groups, g.outer_stride *= head_groups;
    return g;
  }
};

}  // namespace longnet
