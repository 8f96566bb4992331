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
// stays on the rank that attended.
//
// Backward, that rank still has Q, K, V and O of its heads: dO comes by an all-to-all, the sums of
// dK and dV follow the ring (GradientRing), and dQ, dK and dV go back by an all-to-all each. Where
// ranks share a K/V head, its owner adds up what each of them sends.
//
// Pu need not divide H: rank i of a group has part i of the heads (part_begin). A K/V head that
// query heads of two ranks share goes to both.
#include <numeric>

#include "core/check.h"
#include "schedule/registry.h"
#include "schedule/ring_steps.h"

namespace longnet {
namespace {

// Slots of a forward program of Pu > 1 that the backward pass takes over.
constexpr int kExchangedQuery = 4, kExchangedKv = 6, kAttended = 7;

class UspProgram {
 public:
  UspProgram(const ShardedProblem& sharded, Rank rank, int degree, Pass pass)
      : degree_(degree),
        position_(rank / degree),
        heads_(head_part({kEveryRow, {}, {}, sharded.all_heads(), degree}, rank % degree)),
        build_(sharded, rank, pass),
        split_(build_.own()),
        ring_{.members = {.first = rank % degree,
                          .stride = degree,
                          .count = sharded.layout.world_size() / degree},
              .position = position_,
              .shard_of = [this](int position) { return gathered(position); }} {
    split_.head_parts = degree;
  }
  UspProgram(const UspProgram&) = delete;  // shard_of
  UspProgram& operator=(const UspProgram&) = delete;

  RankProgram make() {
    SlotView q = build_.q(), kv = build_.kv(), out = build_.output();
    OpId q_ready = -1, kv_ready = -1;
    if (degree_ > 1) {
      const Slice all = gathered(position_);
      std::tie(q, q_ready) = distribute(TensorKind::kQuery, q);
      std::tie(kv, kv_ready) = distribute(TensorKind::kKeyValue, kv);
      out = build_.add_view(TensorKind::kPartial, SlotTag::kExchange, all);
    }
    ring_.add_buffers(build_, largest_bytes(TensorKind::kKeyValue));
    Accumulator output(build_, out, ring_.members.count > 1);
    ShardBuffer own{kv.slot};
    run_ring(build_, ring_, {kv, kv_ready, &own}, [&](const ShardVisit& visit) -> OpId {
      if (!build_.sees(group(position_), visit.shard.rows.owners)) return -1;
      Attend attend = build_.attend_of(visit.shard);
      attend.q = q;
      return output.add(attend, {q_ready, visit.ready});
    });
    if (degree_ == 1) return build_.take();

    const auto [back, arrived] = pack_and_exchange(
        TensorKind::kResult, [&](int i) { return out.piece(i); }, out.rows, split_,
        output.result());
    for (int i = 0; i < degree_; ++i)
      if (head_part(split_, i).count > 0)
        build_.add(Pack{back.piece(i), build_.output()}, {arrived});
    return build_.take();
  }

  RankProgram make_backward() {
    BackwardSlots rows = build_.backward_rows();
    SlotView kv = build_.kv();
    OpId ready = -1;
    if (degree_ > 1) {
      using enum TensorKind;
      const Slice all = gathered(position_);
      rows.q = build_.keep(kExchangedQuery, kQuery, SlotTag::kExchange, all);
      kv = build_.keep(kExchangedKv, kKeyValue, SlotTag::kExchange, all);
      rows.output = build_.keep(kAttended, kPartial, SlotTag::kExchange, all);
      std::tie(rows.grad_out, ready) = distribute(kGradOut, rows.grad_out);
      rows.statistics = build_.add_view(kStatistics, SlotTag::kStatistics, all);
      rows.grad_q = build_.add_view(kGradQuery, SlotTag::kPartial, all);
      rows.grad_kv = build_.add_view(kGradKeyValue, SlotTag::kPartial, all);
    }
    ring_.add_buffers(build_, largest_bytes(TensorKind::kKeyValue));
    GradientSum sum(build_, rows, ready);
    GradientRing gradients(build_, ring_, sum, largest_bytes(TensorKind::kGradKeyValue));
    gradients.begin(sum.own_keys());
    ShardBuffer own{kv.slot};
    run_ring(build_, ring_, {kv, -1, &own},
             [&](const ShardVisit& visit) { return gradients.add_shard(visit); });
    if (degree_ == 1) return build_.take();

    const auto [dq, dq_arrived] =
        exchange(TensorKind::kGradQuery, rows.grad_q, split_, sum.queries_done());
    const auto [dkv, dkv_arrived] =
        exchange(TensorKind::kGradKeyValue, rows.grad_kv, split_, {sum.own_keys().last});
    const BackwardSlots own_rows = build_.backward_rows();
    OpId added = build_.add(Reset{own_rows.grad_kv});
    for (int i = 0; i < degree_; ++i) {
      build_.add(Pack{dq.piece(i), own_rows.grad_q}, {dq_arrived});
      added = build_.add(Merge{dkv.piece(i), own_rows.grad_kv}, {dkv_arrived, added});
    }
    return build_.take();
  }

 private:
  // Ranks of the group at ring position g; all tokens of a group are on its ranks.
  RankGroup group(int g) const { return {.first = g * degree_, .count = degree_}; }
  Slice gathered(int g) const { return build_.every_row_of(group(g), heads_); }
  int64_t largest_bytes(TensorKind kind) const {
    return build_.largest_bytes(ring_.members.count, ring_.shard_of, kind);
  }

  // All-to-all in the group: piece i of `from` goes to its rank i, rows `into` come.
  std::pair<SlotView, OpId> exchange(TensorKind kind, const SlotView& from, const Slice& into,
                                     std::vector<OpId> ready) {
    const SlotView in = build_.add_view(kind, SlotTag::kExchange, into);
    return {in, build_.add(AllToAll{group(position_), from, in}, std::move(ready))};
  }
  // Packs a part for each rank of the group first: rows `packed`.
  template <class PartOf>
  std::pair<SlotView, OpId> pack_and_exchange(TensorKind kind, PartOf part_of, const Slice& packed,
                                              const Slice& into, OpId after) {
    const SlotView out = build_.add_view(kind, SlotTag::kPacked, packed);
    std::vector<OpId> ready;
    for (int i = 0; i < degree_; ++i)
      ready.push_back(build_.add(Pack{part_of(i), out.piece(i)}, {after}));
    return exchange(kind, out, into, std::move(ready));
  }
  // From my tokens of all heads to the group's tokens of my heads.
  std::pair<SlotView, OpId> distribute(TensorKind kind, const SlotView& own) {
    return pack_and_exchange(
        kind, [&](int) { return own; }, split_, gathered(position_), -1);
  }

  int degree_, position_;
  HeadRange heads_;
  ProgramBuilder build_;
  Slice split_;  // the own rows, one head part for each rank of the group
  Ring ring_;    // ranks that hold the same heads
};

Schedule usp_of_degree(const ShardedProblem& sharded, int degree, Pass pass) {
  const int world = sharded.layout.world_size();
  check(degree >= 1 && world % degree == 0, "Pu = ", degree, " must divide P = ", world);
  ShardedProblem mine = sharded;
  mine.layout = sharded.layout.with_ring_size(world / degree);
  return {.sharded = mine,
          .program =
              [mine, degree, pass](Rank r) {
                UspProgram program(mine, r, degree, pass);
                return pass == Pass::kForward ? program.make() : program.make_backward();
              },
          .inner_group = degree};
}

}  // namespace

Schedule ulysses_attention(const ShardedProblem& sharded, Pass pass) {
  return usp_of_degree(sharded, sharded.layout.world_size(), pass);
}

int usp_degree(const ShardedProblem& sharded) {
  if (sharded.options.ulysses_degree > 0) return sharded.options.ulysses_degree;
  // The largest that divides both the ranks and the K/V heads: with 12 heads on 4096 ranks 4, since
  // 8 ranks would hold one or two heads each, and those of two make the others wait.
  return int(std::gcd(int64_t{sharded.layout.world_size()}, sharded.problem.num_kv_heads));
}

Schedule usp_attention(const ShardedProblem& sharded, Pass pass) {
  return usp_of_degree(sharded, usp_degree(sharded), pass);
}

}  // namespace longnet
