// The lanes of the simulated ranks: which op is next, what it still waits for, and which lanes have
// become able to go on.
//
//   lanes.wake(lane);                                   an op of it may begin
//   while (Lane* lane = lanes.take_awake()) ...         begin what can_begin() says
//   lanes.complete(lane, op, end);                      wakes those that waited for the op alone
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulate/compact_program.h"

namespace longnet {

// In one line of the cache: of thousands of ranks the next one's lane is in none.
struct alignas(64) Lane {
  const CompactOp* ops = nullptr;  // its program's, as `next`
  const double* issued_s = nullptr;
  const uint32_t* next = nullptr;
  double free = 0;    // when it can take the next op
  double finish = 0;  // end of the ops that are over
  uint32_t num_ops = 0, cursor = 0, mask = 0, slots = 0;
  uint32_t rank = 0;
  uint8_t lane = 0;
  bool queued = false, busy = false;
};
static_assert(sizeof(Lane) == 64);

class Lanes {
 public:
  Lanes(const ProgramSet& programs, int ranks)
      : lanes_(size_t(ranks) * kLanes), slots_(lanes_.size() * kFirstWindow) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      lane.rank = uint32_t(i / kLanes);
      lane.lane = uint8_t(i % kLanes);
      lane.slots = uint32_t(i) * kFirstWindow;
      lane.mask = kFirstWindow - 1;
      const CompactProgram& program = programs.of(Rank(lane.rank));
      lane.ops = program.lanes[lane.lane].data();
      lane.num_ops = uint32_t(program.lanes[lane.lane].size());
      if (const auto& issued_s = program.issued_s[lane.lane]; !issued_s.empty())
        lane.issued_s = issued_s.data();
      lane.next = program.next.data();
    }
  }

  size_t size() const { return lanes_.size(); }
  auto begin() { return lanes_.begin(); }
  auto end() { return lanes_.end(); }
  auto begin() const { return lanes_.begin(); }
  auto end() const { return lanes_.end(); }
  Lane& operator[](size_t id) { return lanes_[id]; }
  uint32_t id_of(const Lane& lane) const { return uint32_t(&lane - lanes_.data()); }

  void wake(Lane& lane) {
    if (lane.queued) return;
    lane.queued = true;
    awake_.push_back(&lane);
  }
  // nullptr: none is awake.
  Lane* take_awake() {
    if (awake_.empty()) return nullptr;
    Lane* lane = awake_.back();
    awake_.pop_back();
    lane->queued = false;
    return lane;
  }

  // Returns whether all that the lane's next op waits for is over, ready_s() since when.
  bool can_begin(const Lane& lane) const {
    return slot_of(lane, lane.cursor).arrived == lane.ops[lane.cursor].needs;
  }
  double ready_s(const Lane& lane) const { return slot_of(lane, lane.cursor).ready_s; }
  // The number of the lane's next op, which begins.
  uint32_t take_op(Lane& lane) {
    slots_[lane.slots + (lane.cursor & lane.mask)] = {};
    return lane.cursor++;
  }

  // `op` of the lane is over; those of the rank that waited for nothing else may begin.
  void complete(Lane& lane, const CompactOp& op, double end_s) {
    lane.finish = std::max(lane.finish, end_s);
    Lane* const lanes = &lane - lane.lane;  // the rank's
    const uint32_t* next = lane.next + op.first_next;
    for (uint32_t i = 0; i < op.num_next; ++i)
      arrive(lanes[next[i] >> kLaneShift], next[i] & kIndexMask, end_s);
  }

 private:
  static constexpr uint32_t kFirstWindow = 4;  // slots of a lane for coming ops, at first

  // State of an op that has not begun.
  struct Slot {
    double ready_s = 0;    // end of the last of its waits that are over
    uint32_t arrived = 0;  // number of these
  };
  const Slot& slot_of(const Lane& lane, uint32_t index) const {
    return slots_[lane.slots + (index & lane.mask)];
  }
  void arrive(Lane& lane, uint32_t index, double end_s) {
    while (index - lane.cursor > lane.mask) grow(lane);
    Slot& slot = slots_[lane.slots + (index & lane.mask)];
    slot.ready_s = std::max(slot.ready_s, end_s);
    ++slot.arrived;
    if (index == lane.cursor) wake(lane);
  }
  [[gnu::noinline, gnu::cold]] void grow(Lane& lane) {
    const uint32_t size = 2 * (lane.mask + 1), fresh = uint32_t(slots_.size());
    slots_.resize(slots_.size() + size);
    for (uint32_t i = lane.cursor; i <= lane.cursor + lane.mask; ++i)
      slots_[fresh + (i & (size - 1))] = slots_[lane.slots + (i & lane.mask)];
    lane.mask = size - 1;
    lane.slots = fresh;
  }

  std::vector<Lane> lanes_;
  std::vector<Slot> slots_;  // by lane: mask + 1 from its `slots` on, by the op's number
  std::vector<Lane*> awake_;
};

}  // namespace longnet
