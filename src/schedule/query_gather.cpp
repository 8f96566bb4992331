// Exact attention that moves queries and results instead of keys: all ranks gather all queries,
// attend with their own K/V rows, and a reduce-scatter merges the partial results by LSE (the
// reduction of Tree Attention, Shyam et al., arXiv 2408.04093, applied to a whole prefill). Worth
// it when K/V shards are larger than queries and partials, which grouped queries make rare: a
// baseline that shows why K/V travel.
//
//   P = 2, rank 0:   gather q(0) q(1)
//                    attend both x kv(0) -> partials of 0 and of 1
//                    send the partial of 1 to rank 1, merge rank 1's partial of 0 into the own
#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {

Schedule query_gather_attention(const ShardedProblem& sharded) {
  return {"query_gather", sharded, [sharded](Rank rank) {
            const int world = sharded.layout.world_size();
            ProgramBuilder build(sharded, rank);
            if (world == 1) {
              build.add(build.attend(build.kv(), build.output()));
              return build.take();
            }
            const RankGroup everyone{.first = 0, .stride = 1, .count = world};
            const Slice all = build.every_row_of(everyone, sharded.all_heads());
            const SlotView queries = build.add_view(TensorKind::kQuery, SlotTag::kGathered, all);
            const SlotView partials = build.add_view(TensorKind::kPartial, SlotTag::kPartial, all);
            const OpId copied = build.add(Pack{build.q(), queries.piece(rank)});
            const OpId gathered = build.add(AllGather{everyone, queries}, {copied});
            const OpId attended = build.add(
                Attend{0, sharded.all_tokens(), sharded.all_heads(), queries, build.kv(), partials},
                {gathered});
            const OpId reduced = build.add(ReduceScatter{everyone, partials}, {attended});
            if (!sharded.layout.shard(rank).empty())
              build.add(Pack{partials.piece(rank), build.output()}, {reduced});
            return build.take();
          }};
}

}  // namespace longnet
