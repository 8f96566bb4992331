// Unified sequence parallelism (Fang and Zhao, arXiv 2405.07719): Ulysses inside groups of Pu
// ranks, a ring over the Pr = P / Pu groups. Pu = P is Ulysses (Jacobs et al., arXiv 2309.14509).
//
// Inside a group an all-to-all turns "my tokens, all heads" into "the group's tokens, my heads";
// attention then needs no other rank's heads; a second all-to-all turns the output back. With K/V
// rows of other groups left, they travel around the ring of ranks that hold the same heads.
//
//   P = 4, Pu = 2, H = 4                     rank 0   rank 1   rank 2   rank 3
//     before:            tokens of ranks     0        1        2        3         all heads
//     after all_to_all:  tokens of ranks     0 1      0 1      2 3      2 3
//                        heads               0 1      2 3      0 1      2 3
//     ring step:         K/V of ranks        2 3      2 3      0 1      0 1       the same heads
//
// The output comes back as a result: O in the storage type, as implementations send it. Its LSE
// stays on the rank that attended (where a backward pass wants it).
//
// Pu need not divide H: rank i of a group has part i of the heads (part_begin). A K/V head that
// query heads of two ranks share goes to both.
#include <numeric>

#include "core/check.h"
#include "schedule/registry.h"
#include "schedule/ring_steps.h"

namespace longnet {
namespace {

class UspProgram {
 public:
  UspProgram(const ShardedProblem& sharded, Rank rank, int degree)
      : sharded_(sharded),
        rank_(rank),
        degree_(degree),
        rings_(sharded.layout.world_size() / degree),
        heads_(head_part({kEveryRow, {}, {}, sharded.all_heads(), degree}, rank % degree)),
        build_(sharded, rank) {}

  RankProgram make() {
    if (degree_ > 1) exchange_inputs();
    ring();
    if (degree_ > 1) exchange_output();
    return build_.take();
  }

 private:
  // Ranks of the group at ring position g; all tokens of a group are on its ranks.
  RankGroup group(int g) const { return {.first = g * degree_, .stride = 1, .count = degree_}; }
  int position() const { return rank_ / degree_; }
  Slice gathered(int g) const { return build_.every_row_of(group(g), heads_); }
  Slice split() const {
    Slice s = build_.own();
    s.head_parts = degree_;
    return s;
  }

  // Packs the shard by head parts and exchanges them.
  std::pair<SlotView, OpId> exchange(const SlotView& own, TensorKind kind) {
    const SlotView packed = build_.add_view(kind, SlotTag::kPacked, split());
    const SlotView all = build_.add_view(kind, SlotTag::kExchange, gathered(position()));
    std::vector<OpId> ready;
    for (int i = 0; i < degree_; ++i) ready.push_back(build_.add(Pack{own, packed.piece(i)}));
    return {all, build_.add(AllToAll{group(position()), packed, all}, std::move(ready))};
  }

  void exchange_inputs() {
    std::tie(q_, q_ready_) = exchange(build_.q(), TensorKind::kQuery);
    std::tie(kv_, kv_ready_) = exchange(build_.kv(), TensorKind::kKeyValue);
    out_ = build_.add_view(TensorKind::kPartial, SlotTag::kExchange, gathered(position()));
  }

  void ring() {
    Ring ring{.members = {.first = rank_ % degree_, .stride = degree_, .count = rings_},
              .position = position(),
              .shard_of = [&](int g) { return gathered(g); }};
    ring.add_buffers(build_, build_.largest_kv_bytes(rings_, ring.shard_of));
    Accumulator output(build_, out_, rings_ > 1);
    ShardBuffer own{kv_.slot};
    run_ring(build_, ring, {kv_, kv_ready_, &own}, [&](const ShardVisit& visit) -> OpId {
      if (!build_.sees(group(position()), visit.keys.rows.owners)) return -1;
      return output.add({0, sharded_.all_tokens(), heads_, q_, visit.keys, {}},
                        {q_ready_, visit.ready});
    });
    computed_ = output.result();
  }

  void exchange_output() {
    const SlotView rounded = build_.add_view(TensorKind::kResult, SlotTag::kPacked, out_.rows);
    const SlotView back = build_.add_view(TensorKind::kResult, SlotTag::kExchange, split());
    std::vector<OpId> ready;
    for (int i = 0; i < degree_; ++i)
      ready.push_back(build_.add(Pack{out_.piece(i), rounded.piece(i)}, {computed_}));
    const OpId arrived = build_.add(AllToAll{group(position()), rounded, back}, std::move(ready));
    for (int i = 0; i < degree_; ++i) {
      Slice part = build_.own();
      part.heads = head_part(split(), i);
      if (part.heads.count > 0)
        build_.add(Pack{back.piece(i), {kOutputSlot, build_.own()}}, {arrived});
    }
  }

  const ShardedProblem& sharded_;
  Rank rank_;
  int degree_, rings_;
  HeadRange heads_;
  ProgramBuilder build_;
  SlotView q_ = build_.q(), kv_ = build_.kv(), out_ = build_.output();
  OpId q_ready_ = -1, kv_ready_ = -1, computed_ = -1;
};

Schedule usp_of_degree(std::string name, const ShardedProblem& sharded, int degree) {
  const int world = sharded.layout.world_size();
  check(degree >= 1 && world % degree == 0, "Pu = ", degree, " must divide P = ", world);
  ShardedProblem mine = sharded;
  mine.layout = sharded.layout.with_ring_size(world / degree);
  return {std::move(name), mine,
          [mine, degree](Rank r) { return UspProgram(mine, r, degree).make(); }};
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
