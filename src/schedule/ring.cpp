// Ring Attention (Liu et al., arXiv 2310.01889): exact attention in constant memory, for any
// layout.
//
// One trip of all shards around the ring of all ranks (ring_steps.h). P = 4, rank 1 sees the shards
// 1, 0, 3, 2. Under a causal mask a shard that lies wholly after the queries is passed on but not
// attended to: with contiguous shards the last rank has 2P - 1 of the P^2 half blocks to do, an
// efficiency of P / (2P - 1); zigzag and striped shards balance.
//
// On one rank, as `local`, it is {attend q x kv -> output}.
//
// Backward, K and V make the same trip, and the sums of their gradients follow (GradientRing).
#include "schedule/registry.h"
#include "schedule/ring_steps.h"

namespace longnet {
namespace {

RankProgram ring_program(const ShardedProblem& sharded, Rank rank, Pass pass) {
  const int world = sharded.layout.world_size();
  ProgramBuilder build(sharded, rank, pass);
  Ring ring{.members = {.count = world}, .position = rank, .shard_of = [&](int position) {
              return build.every_row_of(position);
            }};
  ring.add_buffers(build, build.largest_bytes(world, ring.shard_of));
  ShardBuffer own{kKvSlot};
  const ShardVisit start{build.kv(), -1, &own};
  if (pass == Pass::kForward) {
    Accumulator output(build, build.output(), world > 1);
    run_ring(build, ring, start, [&](const ShardVisit& visit) { return output.add_shard(visit); });
  } else {
    GradientSum sum(build);
    GradientRing gradients(build, ring, sum,
                           build.largest_bytes(world, ring.shard_of, TensorKind::kGradKeyValue));
    gradients.begin(sum.own_keys());
    run_ring(build, ring, start,
             [&](const ShardVisit& visit) { return gradients.add_shard(visit); });
  }
  return build.take();
}

}  // namespace

Schedule ring_attention(const ShardedProblem& sharded, Pass pass) {
  return {sharded, [=](Rank rank) { return ring_program(sharded, rank, pass); }};
}

}  // namespace longnet
