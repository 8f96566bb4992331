// Exact attention by gathering all K/V rows on every rank (Llama 3, arXiv 2407.21783,
// section 3.3.2).
//
// One gather and one attend, at the price of O(N) memory. `head_slice` = s bounds it: K/V heads are
// gathered s at a time into two buffers in turn, so that slice i + 1 is sent while slice i is
// attended to.
//
//   Hkv = 4, s = 2:   gather heads 0 1 -> A   gather heads 2 3 -> B
//                                             attend to A             attend to B
//
// Backward, the same with gradients of all rows, which are summed and scattered slice by slice.
#include <array>

#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

RankProgram all_gather_program(const ShardedProblem& sharded, Rank rank, Pass pass) {
  const int world = sharded.layout.world_size();
  const bool backward = pass == Pass::kBackward;
  ProgramBuilder build(sharded, rank, pass);
  GradientSum sum(build);
  if (world == 1) {
    const Attend attend = build.attend_of(build.kv(), build.output());
    backward ? sum.add(attend, sum.own_keys()) : build.add(attend);
    return build.take();
  }
  const AttentionProblem& p = sharded.problem;
  const int64_t sliced = all_gather_head_slice(sharded);
  const int64_t width = sliced > 0 ? sliced : p.num_kv_heads;
  const int64_t slices = ceil_div(p.num_kv_heads, width), group = p.num_heads / p.num_kv_heads;
  const auto heads_of = [&](int64_t slice) {
    const int64_t first = slice * width;
    return HeadRange{first * group, std::min(width, p.num_kv_heads - first) * group};
  };

  const RankGroup everyone{.first = 0, .stride = 1, .count = world};
  std::array<int, 2> buffer{-1, -1}, gradients{-1, -1};
  std::array<OpId, 2> freed{-1, -1},
      summed{-1, -1};  // ops after which a buffer may be filled again
  for (size_t i = 0; i < size_t(std::min<int64_t>(2, slices)); ++i) {
    const Slice largest = build.every_row_of(everyone, heads_of(0));
    buffer[i] = build.add_slot(TensorKind::kKeyValue, SlotTag::kGathered, largest);
    if (backward)
      gradients[i] = build.add_slot(TensorKind::kGradKeyValue, SlotTag::kPartial, largest);
  }
  const auto start_gather = [&](int64_t slice) {
    const size_t b = size_t(slice % 2);
    const SlotView all{buffer[b], build.every_row_of(everyone, heads_of(slice))};
    const OpId copied = build.add(Pack{build.kv(), all.piece(rank)}, {freed[b]});
    return std::pair{all, build.add(AllGather{everyone, all}, {copied})};
  };
  auto next = start_gather(0);
  for (int64_t slice = 0; slice < slices; ++slice) {
    const auto [keys, ready] = next;
    if (slice + 1 < slices) next = start_gather(slice + 1);
    OpId& free = freed[size_t(slice % 2)];
    free = ready;  // a rank without queries still waits for its gather
    const bool empty = sharded.layout.shard(rank).empty();
    const Attend attend = build.attend_of(keys, build.output());
    if (!backward) {
      if (!empty) free = build.add(attend, {ready});
      continue;
    }
    OpId& summed_before = summed[size_t(slice % 2)];
    const SlotView rows{gradients[size_t(slice % 2)], keys.rows};
    Gradients part{rows, build.add(Reset{rows}, {summed_before})};
    if (!empty) free = sum.add(attend, part, ready);
    summed_before = build.add(ReduceScatter{everyone, rows}, {part.last});
    if (!empty) summed_before = build.merge(rows.piece(rank), summed_before, sum.own_keys());
  }
  return build.take();
}

}  // namespace

int64_t all_gather_head_slice(const ShardedProblem& sharded) {
  const int64_t s = sharded.options.head_slice;
  return sharded.layout.world_size() == 1 || s >= sharded.problem.num_kv_heads ? 0 : s;
}

Schedule all_gather_attention(const ShardedProblem& sharded, Pass pass) {
  return {sharded, [=](Rank rank) { return all_gather_program(sharded, rank, pass); }};
}

}  // namespace longnet
