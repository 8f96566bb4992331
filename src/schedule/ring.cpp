// Ring Attention with contiguous shards (Liu et al., arXiv 2310.01889): exact attention in constant
// memory.
//
// In step s rank p holds the K/V rows of rank p - s, sends them to p + 1 and attends to them
// meanwhile. Two buffers take turns, so memory does not grow with P. P = 4, rank 1 sees the shards
// 1, 0, 3, 2. Under a causal mask a shard that lies wholly after the queries is passed on but not
// attended to: with contiguous shards the last rank works P steps and the first one 1, an
// efficiency of (P + 1) / 2P.
#include <array>

#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

RankProgram ring_program(const ShardedProblem& sharded, Rank rank) {
  const SequenceLayout& layout = sharded.layout;
  const int world = layout.world_size();
  const Rank next = (rank + 1) % world, prev = (rank + world - 1) % world;
  const bool has_queries = !layout.shard(rank).empty();
  ProgramBuilder build(sharded, rank);

  // The first shard is the largest (part_begin), so buffers of its size hold any.
  std::array<int, 2> buffer{-1, -1};
  for (int i = 0; i < std::min(2, world - 1); ++i)
    buffer[size_t(i)] =
        build.add_slot(TensorKind::kKeyValue, SlotTag::kKvBuffer, build.every_row_of(0));
  const int partial =
      world > 1 ? build.add_slot(TensorKind::kPartial, SlotTag::kPartial, build.own()) : -1;

  Held here = build.kv();
  OpId arrived = -1;                                   // the recv that filled `here`
  std::array<OpId, 2> sent{-1, -1}, attended{-1, -1};  // last reads of each buffer
  OpId output = -1, scratch = -1;  // last writes of the output and of the partial
  for (int step = 0; step < world; ++step) {
    const Rank owner = (rank + world - step) % world;
    const TokenInterval keys = layout.shard(owner);
    const size_t held_in = size_t(step + 1) % 2,
                 into = size_t(step) % 2;  // buffers; step 0 holds none
    Held incoming;
    OpId received = -1;
    if (step + 1 < world) {
      const Rank coming = (owner + world - 1) % world;
      if (!keys.empty()) {
        const OpId send = build.add(Send{next, here}, {arrived});
        if (step > 0) sent[held_in] = send;
      }
      incoming = {buffer[into], build.every_row_of(coming)};
      if (!layout.shard(coming).empty())
        received = build.add(Recv{prev, incoming}, {sent[into], attended[into]});
    }
    const bool visible = has_queries && !keys.empty() &&
                         (!sharded.problem.causal || keys.begin < layout.shard(rank).end);
    if (visible && step == 0) {
      output = build.add(Attend{0, sharded.all_tokens(), build.q(), here, build.output()});
    } else if (visible) {
      const Held part{partial, build.own()};
      const OpId attend =
          build.add(Attend{0, sharded.all_tokens(), build.q(), here, part}, {arrived, scratch});
      attended[held_in] = attend;
      output = scratch = build.add(Merge{part, build.output()}, {attend, output});
    }
    here = incoming;
    arrived = received;
  }
  return build.take();
}

}  // namespace

Schedule ring_attention(const ShardedProblem& sharded) {
  return {"ring", sharded, [sharded](Rank rank) { return ring_program(sharded, rank); }};
}

}  // namespace longnet
