// Nested rings (Gu et al., LoongTrain, arXiv 2406.18485): K/V shards go around an inner ring of Pi
// ranks, and the inner rings exchange theirs around an outer ring of Po = P / Pi, so that only
// Po - 1 of P - 1 transfers leave a node.
//
// In outer step o the rank at place i of node n starts with the shard of place i of node n - o and
// already sends it on to node n + 1, while Pi inner steps pass the shards of node n - o around.
//
//   P = 4, Pi = 2:   rank 0 sees the shards 0 1 | 2 3,   rank 1 sees 1 0 | 3 2
//
// Backward, a node's sum of a shard's gradients is made around its inner ring, at the place where
// the shard came in, while the sum of the nodes before comes across: Po - 1 of P - 1 hops again.
#include "core/check.h"
#include "schedule/registry.h"
#include "schedule/ring_steps.h"

namespace longnet {
namespace {

RankProgram double_ring_program(const ShardedProblem& sharded, Rank rank, int inner, Pass pass) {
  const int world = sharded.layout.world_size();
  const int outer = world / inner, node = rank / inner, place = rank % inner;
  ProgramBuilder build(sharded, rank, pass);
  const auto largest = [&](TensorKind kind) {
    return build.largest_bytes(
        world, [&](Rank r) { return build.every_row_of(r); }, kind);
  };
  int from_node = node;  // the node whose shards go around the inner ring
  Ring inside{.members = {.first = node * inner, .count = inner},
              .position = place,
              .shard_of = [&](int i) { return build.every_row_of(from_node * inner + i); }};
  Ring across{.members = {.first = place, .stride = inner, .count = outer},
              .position = node,
              .shard_of = [&](int n) { return build.every_row_of(n * inner + place); }};
  for (Ring* ring : {&inside, &across}) ring->add_buffers(build, largest(TensorKind::kKeyValue));
  ShardBuffer own{kKvSlot};
  const ShardVisit own_shard{build.kv(), -1, &own};
  const auto run_inside = [&](const ShardVisit& start, auto& results) {
    from_node = start.shard.rows.owners.first / inner;
    run_ring(build, inside, start,
             [&](const ShardVisit& visit) { return results.add_shard(visit); });
    return OpId{-1};  // the inner ring has listed the op that reads the start
  };
  if (pass == Pass::kForward) {
    Accumulator output(build, build.output(), world > 1);
    run_ring(build, across, own_shard,
             [&](const ShardVisit& start) { return run_inside(start, output); });
    return build.take();
  }
  GradientSum sum(build);
  const int64_t bytes = largest(TensorKind::kGradKeyValue);
  GradientRing of_node(build, inside, sum, bytes);
  SumRing of_all(build, across, bytes);
  of_all.begin(sum.own_keys());
  run_ring(build, across, own_shard, [&](const ShardVisit& start) {
    of_node.begin(of_all.start(start.shard.rows));
    run_inside(start, of_node);
    of_all.finish();
    return OpId{-1};
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

Schedule double_ring_attention(const ShardedProblem& sharded, Pass pass) {
  const int inner = double_ring_inner(sharded);
  check(sharded.layout.world_size() % inner == 0, "Pi = ", inner,
        " must divide P = ", sharded.layout.world_size());
  return {.sharded = sharded,
          .program = [=](Rank rank) { return double_ring_program(sharded, rank, inner, pass); },
          .inner_group = inner};
}

}  // namespace longnet
