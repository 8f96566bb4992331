// Ring Attention (Liu et al., arXiv 2310.01889): exact attention in constant memory, for any
// layout.
//
// In step s rank p holds the K/V rows of rank p - s, sends them to p + 1 and attends to them
// meanwhile. Two buffers take turns, so memory does not grow with P. P = 4, rank 1 sees the shards
// 1, 0, 3, 2. Under a causal mask a shard that lies wholly after the queries is passed on but not
// attended to: with contiguous shards the last rank has 2P - 1 of the P^2 half blocks to do, an
// efficiency of P / (2P - 1); zigzag and striped shards balance.
#include <array>

#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

RankProgram ring_program(const ShardedProblem& sharded, Rank rank) {
  const SequenceLayout& layout = sharded.layout;
  const int world = layout.world_size();
  const Rank next = (rank + 1) % world, prev = (rank + world - 1) % world;
  ProgramBuilder build(sharded, rank);

  std::array<int, 2> buffer{-1, -1};
  for (int i = 0; i < std::min(2, world - 1); ++i)
    buffer[size_t(i)] = build.add_slot(TensorKind::kKeyValue, SlotTag::kKvBuffer,
                                       build.every_row_of(build.largest_shard()));
  const int partial =
      world > 1 ? build.add_slot(TensorKind::kPartial, SlotTag::kPartial, build.own()) : -1;

  Held here = build.kv();
  OpId arrived = -1;                                   // the recv that filled `here`
  std::array<OpId, 2> sent{-1, -1}, attended{-1, -1};  // last reads of each buffer
  OpId output = -1, scratch = -1;  // last writes of the output and of the partial
  for (int step = 0; step < world; ++step) {
    const Rank owner = (rank + world - step) % world;
    // Buffers that hold `here` (none in step 0) and that the next shard comes into.
    const size_t held_in = size_t(step + 1) % 2, into = size_t(step) % 2;
    Held incoming;
    OpId received = -1;
    if (step + 1 < world) {
      const Rank coming = (owner + world - 1) % world;
      if (!layout.shard(owner).empty()) {
        const OpId send = build.add(Send{next, here}, {arrived});
        if (step > 0) sent[held_in] = send;
      }
      incoming = {buffer[into], build.every_row_of(coming)};
      if (!layout.shard(coming).empty())
        received = build.add(Recv{prev, incoming}, {sent[into], attended[into]});
    }
    if (build.visible(layout.shard(rank), layout.shard(owner))) {
      if (step == 0) {
        output = build.add(build.attend(here, build.output()));
      } else {
        const Held part{partial, build.own()};
        attended[held_in] = build.add(build.attend(here, part), {arrived, scratch});
        output = scratch = build.add(Merge{part, build.output()}, {attended[held_in], output});
      }
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
