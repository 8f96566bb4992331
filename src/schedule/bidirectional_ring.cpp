// A ring in both directions: half of the K/V heads go to the next rank, the other half to the
// previous one, so that links which carry both ways at once are used both ways. Same bytes, steps
// and memory as the ring, and each message is half as large.
//
//   P = 4, rank 1, two K/V heads:   head 0 sees the shards 1 0 3 2
//                                   head 1 sees the shards 1 2 3 0
//
// Backward, the sums of each half of the gradients follow their shards.
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

// Runs all steps: attend_own() once, then results[i] gets each shard of stream i.
template <class AttendOwn, class Results>
void run_streams(ProgramBuilder& build, std::array<Stream, 2>& streams, AttendOwn attend_own,
                 std::array<Results*, 2> results) {
  const int steps = streams[0].ring.members.count;
  for (int step = 0; step < steps; ++step) {
    std::array<ShardVisit, 2> next;
    for (size_t i : {0, 1})
      if (step + 1 < steps) next[i] = pass_on(build, streams[i].ring, streams[i].here, step);
    if (step == 0) attend_own();
    for (size_t i : {0, 1}) {
      ShardVisit& here = streams[i].here;
      if (const OpId read = step > 0 ? results[i]->add_shard(here) : -1; read >= 0)
        here.in->uses.push_back(read);
      here = next[i];
    }
  }
}

RankProgram bidirectional_program(const ShardedProblem& sharded, Rank rank, Pass pass) {
  const int world = sharded.layout.world_size();
  const int64_t group = sharded.problem.num_heads / sharded.problem.num_kv_heads;
  const int64_t half = sharded.problem.num_kv_heads / 2 * group;
  const bool empty = sharded.layout.shard(rank).empty();
  ProgramBuilder build(sharded, rank, pass);
  const auto stream = [&](HeadRange heads, int direction) {
    const auto shard_of = [&build, heads](Rank r) {
      return build.every_row_of({.first = r}, heads);
    };
    return Stream{{{.count = world}, rank, shard_of, direction}};
  };
  std::array streams{stream({0, half}, 1), stream({half, sharded.problem.num_heads - half}, -1)};
  for (Stream& s : streams) {
    const int64_t bytes = build.largest_bytes(world, s.ring.shard_of);
    for (ShardBuffer& buffer : s.ring.buffers)
      if (world > 1) buffer.slot = build.add_slot(TensorKind::kKeyValue, SlotTag::kKvBuffer, bytes);
    // The own shard holds all heads side by side; its half is packed to be sent.
    ShardBuffer& packed = s.ring.buffers[1];
    s.here = {{packed.slot, s.ring.shard_of(rank)}, -1, &packed};
    if (world > 1 && !empty)
      packed.uses = {s.here.ready = build.add(Pack{build.kv(), s.here.shard})};
  }
  if (pass == Pass::kForward) {
    Accumulator output(build, build.output(), world > 1);
    const auto attend_own = [&] {
      if (!empty) output.add(build.attend_of(build.kv()), {});
    };
    run_streams(build, streams, attend_own, std::array{&output, &output});
    return build.take();
  }
  GradientSum sum(build);
  const auto gradients_of = [&](const Ring& ring) {
    return GradientRing(build, ring, sum,
                        build.largest_bytes(world, ring.shard_of, TensorKind::kGradKeyValue));
  };
  std::array gradients{gradients_of(streams[0].ring), gradients_of(streams[1].ring)};
  const auto attend_own = [&] {  // all heads at once, in place
    if (!empty) sum.add(build.attend_of(build.kv()), sum.own_keys());
    for (GradientRing& of_half : gradients) {
      of_half.begin(sum.own_keys());
      of_half.finish();
    }
  };
  run_streams(build, streams, attend_own, std::array{&gradients[0], &gradients[1]});
  return build.take();
}

}  // namespace

Schedule bidirectional_ring_attention(const ShardedProblem& sharded, Pass pass) {
  return {sharded, [=](Rank rank) { return bidirectional_program(sharded, rank, pass); }};
}

}  // namespace longnet
