// Unified sequence parallelism (Fang and Zhao, arXiv 2405.07719): Ulysses inside groups of Pu
// ranks, a ring over the Pr = P / Pu groups. Pu = P is Ulysses (Jacobs et al., arXiv 2309.14509).
//
// Inside a group an all-to-all turns "my tokens, all heads" into "the group's tokens, my heads";
// attention then needs no other rank's heads; a second all-to-all turns the output back. K/V rows
// of other groups go around the ring of ranks that hold the same heads.
//
//   P = 4, Pu = 2, H = 4                     rank 0   rank 1   rank 2   rank 3
//     before:            tokens of ranks     0        1        2        3         all heads
//     after all_to_all:  tokens of ranks     0 1      0 1      2 3      2 3
//                        heads               0 1      2 3      0 1      2 3
//     ring step:         K/V of ranks        2 3      2 3      0 1      0 1       the same heads
//
// The output comes back as a result: O in the storage type, as implementations send it. Its LSE
// stays on the rank that attended (where a backward pass needs it).
//
// Pu need not divide H: rank i of a group has part i of the heads (part_begin). A K/V head that
// query heads of two ranks share goes to both.
#include <numeric>

#include "core/check.h"
#include "schedule/registry.h"
#include "schedule/ring_steps.h"

namespace longnet {
namespace {

RankProgram usp_program(const ShardedProblem& sharded, Rank rank, int degree) {
  const int rings = sharded.layout.world_size() / degree, position = rank / degree;
  const HeadRange heads =
      head_part({kEveryRow, {}, {}, sharded.all_heads(), degree}, rank % degree);
  ProgramBuilder build(sharded, rank);
  // Ranks of the group at ring position g; all tokens of a group are on its ranks.
  const auto group = [&](int g) { return RankGroup{.first = g * degree, .count = degree}; };
  const auto gathered = [&](int g) { return build.every_row_of(group(g), heads); };
  Slice split = build.own();
  split.head_parts = degree;

  // Packs a part for each rank of the group and exchanges them: rows `packed` become rows `into`.
  const auto exchange = [&](TensorKind kind, const auto& part_of, const Slice& packed,
                            const Slice& into, OpId after) {
    const SlotView out = build.add_view(kind, SlotTag::kPacked, packed);
    const SlotView in = build.add_view(kind, SlotTag::kExchange, into);
    std::vector<OpId> ready;
    for (int i = 0; i < degree; ++i)
      ready.push_back(build.add(Pack{part_of(i), out.piece(i)}, {after}));
    return std::pair{in, build.add(AllToAll{group(position), out, in}, std::move(ready))};
  };

  SlotView q = build.q(), kv = build.kv(), out = build.output();
  OpId q_ready = -1, kv_ready = -1;
  if (degree > 1) {
    const Slice all = gathered(position);
    std::tie(q, q_ready) = exchange(
        TensorKind::kQuery, [&](int) { return build.q(); }, split, all, -1);
    std::tie(kv, kv_ready) = exchange(
        TensorKind::kKeyValue, [&](int) { return build.kv(); }, split, all, -1);
    out = build.add_view(TensorKind::kPartial, SlotTag::kExchange, all);
  }

  Ring ring{.members = {.first = rank % degree, .stride = degree, .count = rings},
            .position = position,
            .shard_of = gathered};
  ring.add_buffers(build, build.largest_bytes(rings, ring.shard_of));
  Accumulator output(build, out, rings > 1);
  ShardBuffer own{kv.slot};
  run_ring(build, ring, {kv, kv_ready, &own}, [&](const ShardVisit& visit) -> OpId {
    if (!build.sees(group(position), visit.shard.rows.owners)) return -1;
    return output.add({0, sharded.all_tokens(), heads, q, visit.shard, {}}, {q_ready, visit.ready});
  });
  if (degree == 1) return build.take();

  const auto [back, arrived] = exchange(
      TensorKind::kResult, [&](int i) { return out.piece(i); }, out.rows, split, output.result());
  for (int i = 0; i < degree; ++i)
    if (head_part(split, i).count > 0) build.add(Pack{back.piece(i), build.output()}, {arrived});
  return build.take();
}

Schedule usp_of_degree(std::string name, const ShardedProblem& sharded, int degree) {
  const int world = sharded.layout.world_size();
  check(degree >= 1 && world % degree == 0, "Pu = ", degree, " must divide P = ", world);
  ShardedProblem mine = sharded;
  mine.layout = sharded.layout.with_ring_size(world / degree);
  return {std::move(name), mine, [mine, degree](Rank r) { return usp_program(mine, r, degree); }};
}

}  // namespace

Schedule ulysses_attention(const ShardedProblem& sharded) {
  return usp_of_degree("ulysses", sharded, sharded.layout.world_size());
}

int usp_degree(const ShardedProblem& sharded) {
  if (sharded.options.ulysses_degree > 0) return sharded.options.ulysses_degree;
  // The largest that divides both the ranks and the K/V heads: with 12 heads on 4096 ranks 4, since
  // 8 ranks would hold one or two heads each, and those of two make the others wait.
  return int(std::gcd(int64_t{sharded.layout.world_size()}, sharded.problem.num_kv_heads));
}

Schedule usp_attention(const ShardedProblem& sharded) {
  return usp_of_degree("usp", sharded, usp_degree(sharded));
}

}  // namespace longnet
