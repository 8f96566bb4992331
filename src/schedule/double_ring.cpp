// Nested rings (Gu et al., LoongTrain, arXiv 2406.18485): K/V shards go around an inner ring of Pi
// ranks, and the inner rings exchange theirs around an outer ring of Po = P / Pi, so that only
// Po - 1 of P - 1 transfers leave a node.
//
// In outer step o the rank at place i of node n starts with the shard of place i of node n - o and
// already sends it on to node n + 1, while Pi inner steps pass the shards of node n - o around.
//
//   P = 4, Pi = 2:   rank 0 sees the shards 0 1 | 2 3,   rank 1 sees 1 0 | 3 2
#include "core/check.h"
#include "schedule/registry.h"
#include "schedule/ring_steps.h"

namespace longnet {
namespace {

RankProgram double_ring_program(const ShardedProblem& sharded, Rank rank, int inner) {
  const int world = sharded.layout.world_size();
  const int outer = world / inner, node = rank / inner, place = rank % inner;
  ProgramBuilder build(sharded, rank);
  const int64_t bytes =
      build.largest_kv_bytes(world, [&](Rank r) { return build.every_row_of(r); });
  int from_node = node;  // the node whose shards go around the inner ring
  Ring inside{.members = {.first = node * inner, .count = inner},
              .position = place,
              .shard_of = [&](int i) { return build.every_row_of(from_node * inner + i); }};
  Ring across{.members = {.first = place, .stride = inner, .count = outer},
              .position = node,
              .shard_of = [&](int n) { return build.every_row_of(n * inner + place); }};
  inside.add_buffers(build, bytes);
  across.add_buffers(build, bytes);
  Accumulator output(build, build.output(), world > 1);
  ShardBuffer own{kKvSlot};
  run_ring(build, across, {build.kv(), -1, &own}, [&](const ShardVisit& start) -> OpId {
    from_node = start.keys.rows.owners.first / inner;
    run_ring(build, inside, start,
             [&](const ShardVisit& visit) { return output.add_shard(visit); });
    return -1;  // the inner ring has listed the op that reads the start
  });
  return build.take();
}

}  // namespace

int double_ring_inner(const ShardedProblem& sharded) {
  if (sharded.options.ring_inner > 0) return sharded.options.ring_inner;
  int inner = 1;  // the divisor nearest to sqrt(P), from below
  for (int d = 1; d * d <= sharded.layout.world_size(); ++d)
    if (sharded.layout.world_size() % d == 0) inner = d;
  return inner;
}

Schedule double_ring_attention(const ShardedProblem& sharded) {
  const int inner = double_ring_inner(sharded);
  check(sharded.layout.world_size() % inner == 0, "Pi = ", inner,
        " must divide P = ", sharded.layout.world_size());
  return {"double_ring", sharded,
          [sharded, inner](Rank r) { return double_ring_program(sharded, r, inner); }};
}

}  // namespace longnet
