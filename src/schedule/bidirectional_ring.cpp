// A ring in both directions: half of the K/V heads go to the next rank, the other half to the
// previous one, so that links which carry both ways at once are used both ways. Same bytes, steps
// and memory as the ring, and each message is half as large.
//
//   P = 4, rank 1, two K/V heads:   head 0 sees the shards 1 0 3 2
//                                   head 1 sees the shards 1 2 3 0
#include <array>

#include "schedule/registry.h"
#include "schedule/ring_steps.h"

namespace longnet {
namespace {

// One direction: its ring, and the shard at hand.
struct Stream {
  Ring ring;
  ShardVisit here = {};
};

RankProgram bidirectional_program(const ShardedProblem& sharded, Rank rank) {
  const int world = sharded.layout.world_size();
  const int64_t group = sharded.problem.num_heads / sharded.problem.num_kv_heads;
  const int64_t half = sharded.problem.num_kv_heads / 2 * group;
  ProgramBuilder build(sharded, rank);
  const auto stream = [&](HeadRange heads, int direction) {
    const auto shard_of = [&build, heads](Rank r) {
      return build.every_row_of({.first = r}, heads);
    };
    return Stream{{{.count = world}, rank, shard_of, direction}};
  };
  std::array streams{stream({0, half}, 1), stream({half, sharded.problem.num_heads - half}, -1)};
  for (Stream& s : streams) {
    const int64_t bytes = build.largest_kv_bytes(world, s.ring.shard_of);
    for (ShardBuffer& buffer : s.ring.buffers)
      if (world > 1) buffer.slot = build.add_slot(TensorKind::kKeyValue, SlotTag::kKvBuffer, bytes);
    // The own shard holds all heads side by side; its half is packed to be sent.
    ShardBuffer& packed = s.ring.buffers[1];
    s.here = {{packed.slot, s.ring.shard_of(rank)}, -1, &packed};
    if (world > 1 && !sharded.layout.shard(rank).empty())
      packed.uses = {s.here.ready = build.add(Pack{build.kv(), s.here.keys})};
  }
  Accumulator output(build, build.output(), world > 1);
  if (!sharded.layout.shard(rank).empty()) output.add(build.attend(build.kv()), {});
  for (int step = 0; step + 1 < world; ++step) {
    for (Stream& s : streams) s.here = pass_on(build, s.ring, s.here, step);
    for (Stream& s : streams) {
      if (!build.sees(s.here.keys.rows.owners)) continue;
      Attend attend = build.attend(s.here.keys);
      attend.heads = s.here.keys.rows.heads;
      s.here.in->uses.push_back(output.add(attend, {s.here.ready}));
    }
  }
  return build.take();
}

}  // namespace

Schedule bidirectional_ring_attention(const ShardedProblem& sharded) {
  return {"bidirectional_ring", sharded,
          [sharded](Rank r) { return bidirectional_program(sharded, r); }};
}

}  // namespace longnet
