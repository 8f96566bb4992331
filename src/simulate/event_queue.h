// Events by time; equal times in the order in which they were pushed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace longnet {

enum class EventKind : uint32_t { kLatencyOver, kFlowEnds, kLaneEnds, kCollectiveEnds };

struct Event {
  double time;
  uint64_t order;
  EventKind kind;
  uint32_t id, version;
};

class EventQueue {
 public:
  void push(double time, EventKind kind, uint32_t id, uint32_t version = 0) {
    heap_.push_back({time, next_++, kind, id, version});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event e = heap_.back();
    heap_.pop_back();
    return e;
  }
  bool empty() const { return heap_.empty(); }
  double next_time() const { return heap_.front().time; }

 private:
  static bool later(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
  std::vector<Event> heap_;
  uint64_t next_ = 0;
};

}  // namespace longnet
