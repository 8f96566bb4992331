// Ring Attention whose backward pass moves queries (BurstAttention, Sun et al., arXiv 2403.09347
// and 2509.19836): Q, dO, L and delta of each shard go around, the sums of its dQ follow, and K, V
// and their gradients stay. With e bytes a number these are H (2e + 4) d + 8H bytes a token where
// K, V and their gradients have 2G (e + 4) d: fewer when most heads have keys of their own. The
// forward pass is the ring's.
//
//   P = 4, rank 1:   step 0   step 1       step 2          step 3           end
//     queries of     1        0            3               2
//     their dQ       in place begins here  of 0, then 1    of 3, 0, then 1  the own arrives
#include <array>

#include "schedule/registry.h"
#include "schedule/ring_steps.h"

namespace longnet {
namespace {

RankProgram query_ring_program(const ShardedProblem& sharded, Rank rank) {
  using enum TensorKind;
  const int world = sharded.layout.world_size();
  ProgramBuilder build(sharded, rank, Pass::kBackward);
  const auto shard_of = [&](int position) { return build.every_row_of(position); };
  const auto largest = [&](TensorKind kind) { return build.largest_bytes(world, shard_of, kind); };
  const auto ring_of = [&](TensorKind kind) {
    Ring ring{.members = {.count = world}, .position = rank, .shard_of = shard_of};
    ring.add_buffers(build, largest(kind), kind, SlotTag::kExchange);
    return ring;
  };
  std::array rings{ring_of(kQuery), ring_of(kGradOut), ring_of(kStatistics)};
  std::array<ShardBuffer, 3> own{{{kQuerySlot}, {kGradOutSlot}, {kStatisticsSlot}}};
  std::array<ShardVisit, 3> here, next;
  for (size_t i = 0; i < 3; ++i) here[i] = {{own[i].slot, build.own()}, -1, &own[i]};
  SumRing sums(build, rings[0], largest(kGradQuery), kGradQuery);
  Gradients grad_q{{kGradQuerySlot, build.own()}}, grad_kv{build.grad_kv()};
  sums.begin(grad_q);
  for (int step = 0; step < world; ++step) {
    const bool begins = step == 0 && !build.is_empty(build.own());
    for (size_t i = 0; i < 3; ++i) {
      if (begins && i == 2)  // Q and dO are on their way
        here[i].ready =
            build.add(Delta{build.output(), build.output(), here[1].shard, here[i].shard});
      if (step + 1 < world) next[i] = pass_on(build, rings[i], here[i], step);
    }
    if (begins)
      for (Gradients* sum : {&grad_q, &grad_kv}) sum->last = build.add(Reset{sum->rows});
    const auto& [q, grad_out, statistics] = here;
    Gradients& part = sums.start(q.shard.rows);
    if (build.sees(q.shard.rows.owners, {.first = rank})) {
      part.last = grad_kv.last = build.add(
          AttendBackward{0, sharded.all_tokens(), sharded.all_heads(), q.shard, build.kv(),
                         grad_out.shard, statistics.shard, part.rows, grad_kv.rows},
          {q.ready, grad_out.ready, statistics.ready, part.last, grad_kv.last});
      for (const ShardVisit& visit : here) visit.in->uses.push_back(part.last);
    }
    sums.finish();
    here = next;
  }
  return build.take();
}

}  // namespace

Schedule query_ring_attention(const ShardedProblem& sharded, Pass pass) {
  if (pass == Pass::kForward) return ring_attention(sharded, pass);
  return {sharded, [=](Rank rank) { return query_ring_program(sharded, rank); }};
}

}  // namespace longnet
