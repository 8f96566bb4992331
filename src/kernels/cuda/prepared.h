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
#include "core/tagged_memory.h"

namespace longnet {

class Prepared {
 public:
  using Step = std::function<void(const Stream&)>;

  // Scratch memory.
  std::byte* workspace(int64_t bytes, MemoryLedger& ledger) {
    return workspaces_.emplace_back(ledger, kWorkspaceTag, bytes).data();
  }
  template <class T>
  const T* upload(const std::vector<T>& list, MemoryLedger& ledger) {
    return lists_.emplace_back(ledger, kTaskLists, int64_t(list.size() * sizeof(T))).upload(list);
  }
  void then(Step step) { steps_.push_back(std::move(step)); }
  void then(Prepared next) {
    std::ranges::move(next.workspaces_, std::back_inserter(workspaces_));
    std::ranges::move(next.lists_, std::back_inserter(lists_));
    std::ranges::move(next.steps_, std::back_inserter(steps_));
  }
  void launch(const Stream& stream) const {
    for (const Step& step : steps_) step(stream);
  }
  // Made NaN, what an earlier launch left there cannot pass for the next one's.
  const std::vector<DeviceBuffer>& workspaces() const { return workspaces_; }

 private:
  std::vector<DeviceBuffer> workspaces_, lists_;
  std::vector<Step> steps_;
};

}  // namespace longnet
