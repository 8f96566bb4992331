// Nested rings (Gu et al., LoongTrain, arXiv 2406.18485): K/V shards go around an inner ring of Pi
// ranks, and the inner rings exchange theirs around an outer ring of Po = P / Pi, so that only (Po
// - 1) of P - 1 transfers leave a node.
//
// Outer step o: rank (node n, place i) starts with the shard of (n - o, i) and already sends it on
// to node n + 1 while Pi inner steps pass the shards of node n - o around. P = 4, Pi = 2, rank 0
// sees 0 1 | 2 3.
#include <array>

#include "core/check.h"
#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// A buffer that shards come into, and what the next one must wait for.
struct Buffer {
  int slot = -1;
  std::vector<OpId> uses;
};

class DoubleRingProgram {
 public:
  DoubleRingProgram(const ShardedProblem& sharded, Rank rank, int inner)
      : sharded_(sharded),
        rank_(rank),
        inner_(inner),
        outer_(sharded.layout.world_size() / inner),
        build_(sharded, rank) {}

  RankProgram make() {
    const int64_t bytes =
        slice_bytes(sharded_, TensorKind::kKeyValue, build_.every_row_of(build_.largest_shard()));
    const auto add_buffer = [&] {
      return Buffer{build_.add_slot(TensorKind::kKeyValue, SlotTag::kKvBuffer, bytes), {}};
    };
    std::array<Buffer, 2> inner_buffers, outer_buffers;
    for (int i = 0; i < std::min(2, inner_ - 1); ++i) inner_buffers[size_t(i)] = add_buffer();
    for (int i = 0; i < std::min(2, outer_ - 1); ++i) outer_buffers[size_t(i)] = add_buffer();
    if (outer_ * inner_ > 1)
      partial_ = build_.add_slot(TensorKind::kPartial, SlotTag::kPartial, build_.own());

    const int node = rank_ / inner_, place = rank_ % inner_;
    Held start = build_.kv();
    OpId start_ready = -1;
    Buffer own;  // of the first outer step: nobody writes it
    Buffer* start_buffer = &own;
    for (int o = 0; o < outer_; ++o) {
      const int from_node = (node + outer_ - o) % outer_;
      Held next_start;
      OpId next_ready = -1;
      Buffer* next_buffer = &outer_buffers[size_t(o % 2)];
      if (o + 1 < outer_) {
        const Rank coming = (from_node + outer_ - 1) % outer_ * inner_ + place;
        next_start = {next_buffer->slot, build_.every_row_of(coming)};
        send((node + 1) % outer_ * inner_ + place, start, start_ready, *start_buffer);
        next_ready =
            receive((node + outer_ - 1) % outer_ * inner_ + place, next_start, *next_buffer);
      }
      inner_ring(start, start_ready, *start_buffer, from_node, inner_buffers);
      start = next_start;
      start_ready = next_ready;
      start_buffer = next_buffer;
    }
    return build_.take();
  }

 private:
  bool empty(const Held& held) const {
    return sharded_.layout.shard(held.rows.owners.first).empty();
  }

  void send(Rank to, const Held& what, OpId ready, Buffer& buffer) {
    if (!empty(what)) buffer.uses.push_back(build_.add(Send{to, what}, {ready}));
  }
  OpId receive(Rank from, const Held& what, Buffer& buffer) {
    if (empty(what)) return -1;
    const OpId received = build_.add(Recv{from, what}, std::move(buffer.uses));
    buffer.uses = {received};  // even if nobody reads it, the next one must wait for it
    return received;
  }

  void inner_ring(Held here, OpId ready, Buffer& first, int from_node,
                  std::array<Buffer, 2>& buffers) {
    const int node = rank_ / inner_, place = rank_ % inner_;
    Buffer* holds = &first;
    for (int i = 0; i < inner_; ++i) {
      Held incoming;
      OpId received = -1;
      Buffer* into = &buffers[size_t(i % 2)];
      if (i + 1 < inner_) {
        const Rank coming = from_node * inner_ + (place + inner_ - i - 1) % inner_;
        incoming = {into->slot, build_.every_row_of(coming)};
        send(node * inner_ + (place + 1) % inner_, here, ready, *holds);
        received = receive(node * inner_ + (place + inner_ - 1) % inner_, incoming, *into);
      }
      attend(here, ready, *holds);
      here = incoming;
      ready = received;
      holds = into;
    }
  }

  void attend(const Held& keys, OpId ready, Buffer& buffer) {
    if (!build_.visible(sharded_.layout.shard(rank_),
                        sharded_.layout.shard(keys.rows.owners.first)))
      return;
    if (keys.slot == kKvSlot) {
      output_ = build_.add(build_.attend(keys, build_.output()));
      return;
    }
    const Held part{partial_, build_.own()};
    const OpId done = build_.add(build_.attend(keys, part), {ready, scratch_});
    buffer.uses.push_back(done);
    output_ = scratch_ = build_.add(Merge{part, build_.output()}, {done, output_});
  }

  const ShardedProblem& sharded_;
  Rank rank_;
  int inner_, outer_;
  ProgramBuilder build_;
  int partial_ = -1;
  OpId output_ = -1, scratch_ = -1;
};

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
          [sharded, inner](Rank r) { return DoubleRingProgram(sharded, r, inner).make(); }};
}

}  // namespace longnet
