// Parts that the ring algorithms share: K/V shards that go around a ring of ranks, and partial
// results that are folded into one.
//
// In step s the rank at position p has the shard of position p - s, sends it to p + 1 and attends
// to it, while the shard of p - s - 1 comes into the other of two buffers: memory does not grow
// with the ring. Shards without rows are neither sent nor awaited.
//
//   R = 4, position 1:   step 0   step 1   step 2   step 3
//     shard              1        0        3        2
//     in                 own      buffer 0 buffer 1 buffer 0
#pragma once
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "schedule/program_builder.h"

namespace longnet {

// A slot that receives shards, and the ops that the next arrival must wait for.
struct ShardBuffer {
  int slot = -1;
  std::vector<OpId> uses = {};
};

// A shard on this rank: where, since which op (-1: from the start), in which buffer.
struct ShardVisit {
  SlotView shard;
  OpId ready = -1;
  ShardBuffer* in = nullptr;
};

struct Ring {
  RankGroup members;  // ranks of the ring, by position
  int position = 0;   // position of this rank
  std::function<Slice(int)> shard_of;
  int direction = 1;  // -1: shards travel to lower positions
  std::array<ShardBuffer, 2> buffers = {};

  // The position `steps` behind the own one, from where shards come.
  int behind(int steps) const {
    return (position + members.count - direction * steps) % members.count;
  }
  // Adds as many buffers as the ring needs, each for the largest shard.
  void add_buffers(ProgramBuilder& build, int64_t bytes, TensorKind kind = TensorKind::kKeyValue,
                   SlotTag tag = SlotTag::kKvBuffer) {
    for (int i = 0; i < std::min(2, members.count - 1); ++i)
      buffers[size_t(i)].slot = build.add_slot(kind, tag, bytes);
  }
};

// Step `step`: the shard at hand goes on, the next one comes into buffer step % 2.
inline ShardVisit pass_on(ProgramBuilder& build, Ring& ring, const ShardVisit& here, int step) {
  const Rank to = ring.members[ring.behind(ring.members.count - 1)];
  if (!build.is_empty(here.shard.rows))
    here.in->uses.push_back(build.add(Send{to, here.shard}, {here.ready}));
  ShardBuffer& buffer = ring.buffers[size_t(step % 2)];
  ShardVisit next{{buffer.slot, ring.shard_of(ring.behind(step + 1))}, -1, &buffer};
  if (build.is_empty(next.shard.rows)) return next;
  next.ready = build.add(Recv{ring.members[ring.behind(1)], next.shard}, std::move(buffer.uses));
  buffer.uses = {next.ready};  // the next receive waits for it even if no op reads it
  return next;
}

// Runs all steps of a ring, from the shard `here` on: attend(visit) returns the op that reads the
// shard, or -1.
template <class AttendFn>
void run_ring(ProgramBuilder& build, Ring& ring, ShardVisit here, AttendFn attend) {
  for (int step = 0; step < ring.members.count; ++step) {
    ShardVisit next;
    if (step + 1 < ring.members.count) next = pass_on(build, ring, here, step);
    const OpId read = attend(std::as_const(here));
    if (read >= 0) here.in->uses.push_back(read);
    here = next;
  }
}

// Sums of gradients that follow their shards around the ring. A rank adds its part to the first
// shard's gradient in place, in `own`; that of another shard it computes alone, adds what has come
// from the rank behind, and sends it on, while it computes the next one. The sum of a shard begins
// at the next rank and reaches its owner after R - 1 hops, one fewer than a sum that begins there.
//
//   R = 4, position 1:   step 0   step 1       step 2          step 3           end
//     shard              1        0            3               2                1
//     its sum            in place begins here  of 0, then 1    of 3, 0, then 1  of 2, 3, 0 comes
class SumRing {
 public:
  SumRing(ProgramBuilder& build, const Ring& ring, int64_t bytes,
          TensorKind kind = TensorKind::kGradKeyValue)
      : build_(build), ring_(ring) {
    const int others = ring.members.count - 1;
    const auto add_slot = [&] { return build.add_slot(kind, SlotTag::kPartial, bytes); };
    for (int i = 0; i < std::min(2, others); ++i) partials_[size_t(i)].slot = add_slot();
    if (others > 0) arrival_ = add_slot();
  }

  // Before step 0 of each trip.
  void begin(Gradients& own) {
    own_ = &own;
    step_ = 0;
  }
  // A step: returns where the gradients of `shard` are added ...
  Gradients& start(const Slice& shard) {
    if (step_ == 0) return *own_;
    ShardBuffer& partial = partials_[size_t((step_ - 1) % 2)];
    part_ = {{partial.slot, shard}};
    if (!build_.is_empty(shard))
      part_.last = build_.add(Reset{part_.rows}, std::move(partial.uses));
    return part_;
  }
  // ... and, when they are, sends them on. The last step adds the sum that reaches its owner.
  void finish() {
    const int step = step_++;
    if (step == 0) return;
    if (!build_.is_empty(part_.rows.rows)) {
      if (step > 1) merged_ = build_.merge({arrival_, part_.rows.rows}, arrived_, part_);
      partials_[size_t((step - 1) % 2)].uses = {build_.add(
          Send{ring_.members[ring_.behind(ring_.members.count - 1)], part_.rows}, {part_.last})};
    }
    const SlotView next{arrival_, ring_.shard_of(ring_.behind(step + 1))};
    if (build_.is_empty(next.rows)) return;
    arrived_ = build_.add(Recv{ring_.members[ring_.behind(1)], next}, {merged_});
    if (step + 1 == ring_.members.count) merged_ = build_.merge(next, arrived_, *own_);
  }

 protected:
  ProgramBuilder& build_;

 private:
  const Ring& ring_;
  Gradients* own_ = nullptr;
  Gradients part_;  // the present shard's
  std::array<ShardBuffer, 2> partials_ = {};
  int arrival_ = -1, step_ = 0;
  OpId arrived_ = -1, merged_ = -1;  // merged: the arrival buffer is free again
};

// Sums of dK and dV, one attend a step.
class GradientRing : public SumRing {
 public:
  GradientRing(ProgramBuilder& build, const Ring& ring, GradientSum& sum, int64_t bytes)
      : SumRing(build, ring, bytes), sum_(sum) {}

  // Returns the op that reads the shard; -1, and no attend, when no own query sees it.
  OpId add_shard(const ShardVisit& visit) {
    Gradients& part = start(visit.shard.rows);
    const bool sees = sum_.sees(visit.shard.rows.owners);
    const OpId read = sees ? sum_.add(build_.attend_of(visit.shard), part, visit.ready) : -1;
    finish();
    return read;
  }

 private:
  GradientSum& sum_;
};

// Folds attends into one partial: the first, of all its heads, is written in place; the others go
// through a scratch slot and are merged.
class Accumulator {
 public:
  Accumulator(ProgramBuilder& build, const SlotView& out, bool several_attends)
      : build_(build), out_(out) {
    if (several_attends)
      scratch_ = build.add_slot(TensorKind::kPartial, SlotTag::kPartial, out.rows);
  }

  // Adds `attend`, which names everything but its target; returns the op that reads the keys.
  OpId add(Attend attend, std::vector<OpId> after) {
    if (result_ < 0) {
      attend.into = out_;
      return result_ = build_.add(attend, std::move(after));
    }
    attend.into = {scratch_, out_.rows};
    attend.into.rows.heads = attend.heads;
    after.push_back(merged_);
    const OpId done = build_.add(attend, std::move(after));
    result_ = merged_ = build_.add(Merge{attend.into, out_}, {done, result_});
    return done;
  }
  // Adds the attend of all heads to a K/V shard; returns -1, and adds no op, when no own query sees
  // it.
  OpId add_shard(const ShardVisit& visit) {
    if (!build_.sees(visit.shard.rows.owners)) return -1;
    return add(build_.attend_of(visit.shard), {visit.ready});
  }
  OpId result() const { return result_; }  // the op that completes the partial; -1: nothing added

 private:
  ProgramBuilder& build_;
  SlotView out_;
  int scratch_ = -1;
  OpId result_ = -1, merged_ = -1;  // merged: the scratch is free again
};

}  // namespace longnet
