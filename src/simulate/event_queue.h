// Events by time; equal times in the order in which they were pushed.
//
// Ranks that do the same have events at the same times, by the thousand. So events of one time form
// a list, and only the lists are in a heap: most pushes and pops do not touch it.
//
//   push(2, a) push(1, b) push(2, c)  ->  heap: 1 -> {b}, 2 -> {a, c}  ->  pops b, a, c
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "simulate/pool.h"

namespace longnet {

enum class EventKind : uint32_t { kLatencyOver, kFlowEnds, kLaneEnds, kCanBegin, kCollectiveEnds };

struct QueuedEvent {
  EventKind kind;
  uint32_t id, version;
};

// Ends that rounding alone keeps apart happen together.
inline bool is_same_time(double time, double first) { return time <= first * (1 + 1e-14); }

class EventQueue {
 public:
  EventQueue() { recent_.fill(kNoSlot); }

  void push(double time, EventKind kind, uint32_t id, uint32_t version = 0) {
    const uint32_t at = take_slot(nodes_, free_nodes_);
    nodes_[at] = {{kind, id, version}, kNoSlot};
    List& list = lists_[list_of(time)];
    append(nodes_, at, list.first, list.last);
  }
  QueuedEvent pop() {
    const uint32_t id = heap_.front().list;
    List& list = lists_[id];
    const uint32_t at = list.first;
    list.first = nodes_[at].next;
    free_nodes_.push_back(at);
    if (list.first == kNoSlot) {
      list.time = std::numeric_limits<double>::quiet_NaN();  // nothing joins it any more
      free_lists_.push_back(id);
      std::pop_heap(heap_.begin(), heap_.end(), Later{});
      heap_.pop_back();
    }
    return nodes_[at].event;
  }
  bool empty() const { return heap_.empty(); }
  double next_time() const { return heap_.front().time; }

 private:
  static constexpr int kRecentBits = 10;
  struct Node {
    QueuedEvent event;
    uint32_t next;
  };
  struct List {
    double time;
    uint32_t first, last;
  };
  struct Place {
    double time;
    uint64_t order;  // counts lists as made: of two of one time only the later one still grows
    uint32_t list;
  };
  struct Later {
    bool operator()(const Place& a, const Place& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };
  // The list that was last used for `time`, or a new one where another time took its place since.
  uint32_t list_of(double time) {
    const uint64_t mixed = std::bit_cast<uint64_t>(time) * 0x9e3779b97f4a7c15u;
    uint32_t& recent = recent_[size_t(mixed >> (64 - kRecentBits))];
    if (recent != kNoSlot && lists_[recent].time == time) return recent;
    recent = take_slot(lists_, free_lists_);
    lists_[recent] = {time, kNoSlot, kNoSlot};
    heap_.push_back({time, next_++, recent});
    std::push_heap(heap_.begin(), heap_.end(), Later{});
    return recent;
  }

  std::vector<Node> nodes_;
  std::vector<List> lists_;
  std::vector<Place> heap_;
  std::vector<uint32_t> free_nodes_, free_lists_;
  std::array<uint32_t, size_t{1} << kRecentBits> recent_;
  uint64_t next_ = 0;
};

}  // namespace longnet
