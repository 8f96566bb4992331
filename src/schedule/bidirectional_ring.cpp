// A ring in both directions: half of the K/V heads travel to the next rank, the other half to the
// previous one, so that links which carry both ways at once are used both ways. Same bytes, steps
// and memory as the ring, and each message is half as large.
//
//   P = 4, rank 1, two K/V heads: head 0 sees the shards 1 0 3 2, head 1 the shards 1 2 3 0.
#include <array>

#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// One direction: its heads, where they go, and the two buffers that take turns.
struct Stream {
  HeadRange heads;
  int step_to;  // +1: to the next rank
  std::array<int, 2> buffer{-1, -1};
  std::array<std::vector<OpId>, 2> uses{};  // of each buffer, that the next receive waits for
  Held here{};
  OpId arrived = -1;
};

RankProgram bidirectional_program(const ShardedProblem& sharded, Rank rank) {
  const SequenceLayout& layout = sharded.layout;
  const int world = layout.world_size();
  const int64_t group = sharded.problem.num_heads / sharded.problem.num_kv_heads;
  const int64_t half = sharded.problem.num_kv_heads / 2 * group;
  ProgramBuilder build(sharded, rank);
  const auto shard_of = [&](Rank r, HeadRange heads) {
    return build.every_row_of({.first = r}, heads);
  };

  std::array<Stream, 2> streams{Stream{{0, half}, 1},
                                Stream{{half, sharded.problem.num_heads - half}, world - 1}};
  for (Stream& s : streams) {
    for (int i = 0; i < (world > 1 ? 2 : 0); ++i)
      s.buffer[size_t(i)] = build.add_slot(TensorKind::kKeyValue, SlotTag::kKvBuffer,
                                           shard_of(build.largest_shard(), s.heads));
    // The own shard holds all heads side by side; its half is packed to travel.
    if (world > 1 && !layout.shard(rank).empty()) {
      s.here = {s.buffer[0], shard_of(rank, s.heads)};
      s.arrived = build.add(Select{build.kv(), s.here});
      s.uses[0] = {s.arrived};
    }
  }
  const int partial =
      world > 1 ? build.add_slot(TensorKind::kPartial, SlotTag::kPartial, build.own()) : -1;
  OpId output = build.visible(layout.shard(rank), layout.shard(rank))
                    ? build.add(build.attend(build.kv(), build.output()))
                    : -1;
  OpId scratch = -1;
  for (int step = 1; step < world; ++step) {
    for (Stream& s : streams) {
      const Rank to = (rank + s.step_to) % world, from = (rank + world - s.step_to) % world;
      const Rank held = (rank + (world - s.step_to) * (step - 1)) % world,
                 coming = (held + world - s.step_to) % world;
      const size_t now = size_t(step + 1) % 2, next = size_t(step) % 2;
      if (!layout.shard(held).empty())
        s.uses[now].push_back(build.add(Send{to, s.here}, {s.arrived}));
      s.here = {s.buffer[next], shard_of(coming, s.heads)};
      s.arrived = -1;
      if (!layout.shard(coming).empty()) {
        s.arrived = build.add(Recv{from, s.here}, std::exchange(s.uses[next], {}));
        s.uses[next] = {s.arrived};
      }
      if (!build.visible(layout.shard(rank), layout.shard(coming))) continue;
      const Held part{partial, shard_of(rank, s.heads)};
      Attend attend = build.attend(s.here, part);
      attend.heads = s.heads;
      const OpId done = build.add(attend, {s.arrived, scratch});
      s.uses[next].push_back(done);
      output = scratch = build.add(Merge{part, build.output()}, {done, output});
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
