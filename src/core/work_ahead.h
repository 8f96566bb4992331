// Results of work(0), work(1), ... work(count - 1), which run on threads of their own.
//
//   WorkAhead<Result> results(count, threads, work);
//   for (size_t i = 0; i < count; ++i) use(results.next());   // in order; later ones are worked on
#pragma once
#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace longnet {

template <class Result>
class WorkAhead {
 public:
  // At least one thread, fewer than asked for where the system gives no more. `work` is called by
  // all of them.
  WorkAhead(size_t count, int threads, std::function<Result(size_t)> work)
      : work_(std::move(work)), results_(count) {
    try {
      for (int t = 0; t < std::max(threads, 1); ++t) threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;
    }
  }
  // Waits for the items under way. Items that are not begun are never computed.
  ~WorkAhead() { begun_ = results_.size(); }
  WorkAhead(const WorkAhead&) = delete;
  WorkAhead& operator=(const WorkAhead&) = delete;

  // Waits for the next result. Throws what its work threw, once; those after it can be asked for.
  Result next() { return results_.at(taken_++).get_future().get(); }

 private:
  void run() {
    for (size_t i = begun_++; i < results_.size(); i = begun_++) {
      try {
        results_[i].set_value(work_(i));
      } catch (...) {
        results_[i].set_exception(std::current_exception());
      }
    }
  }

  std::function<Result(size_t)> work_;
  std::vector<std::promise<Result>> results_;
  std::atomic<size_t> begun_ = 0;
  size_t taken_ = 0;
  std::vector<std::jthread> threads_;  // the last member: they end before what they use
};

}  // namespace longnet
