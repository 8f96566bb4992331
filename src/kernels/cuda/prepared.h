// Work on a GPU that is prepared once and launched many times: steps in order, and the device
// memory that they refer to.
//
//   Prepared work;
//   const PackTask* const tasks = work.upload(list, ledger);
//   work.then([=](const Stream& stream) { kernel<<<1, 32, 0, stream.handle()>>>(tasks); });
//   work.launch(stream);
//
// A launch allocates nothing and returns at once. Each may be in flight once at a time: scratch
// memory is shared.
#pragma once
#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "core/cuda/device.h"

namespace longnet {

class Prepared {
 public:
  using Step = std::function<void(const Stream&)>;

  // Scratch memory.
  std::byte* workspace(int64_t bytes, MemoryLedger& ledger) {
    return memory_.emplace_back(ledger, "workspace", bytes).data();
  }
  template <class T>
  const T* upload(const std::vector<T>& list, MemoryLedger& ledger) {
    return memory_.emplace_back(ledger, "task_lists", int64_t(list.size() * sizeof(T)))
        .upload(list);
  }
  void then(Step step) { steps_.push_back(std::move(step)); }
  void then(Prepared next) {
    std::ranges::move(next.memory_, std::back_inserter(memory_));
    std::ranges::move(next.steps_, std::back_inserter(steps_));
  }
  void launch(const Stream& stream) const {
    for (const Step& step : steps_) step(stream);
  }

 private:
  std::vector<DeviceBuffer> memory_;
  std::vector<Step> steps_;
};

}  // namespace longnet
