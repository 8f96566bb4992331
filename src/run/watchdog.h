// Ends a run that makes no progress: a rank that never arrives would keep all others waiting for
// ever.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace longnet {

class Watchdog {
 public:
  // `on_timeout` gets what was watched; the process then ends with exit code 3.
  explicit Watchdog(std::function<void(const std::string&)> on_timeout)
      : on_timeout_(std::move(on_timeout)),
        thread_([this](const std::stop_token& stop) { watch(stop); }) {}

  void expect(const std::string& what, double within_s) {
    std::lock_guard lock(mutex_);
    what_ = what;
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(within_s));
    armed_ = true;
    changed_.notify_all();
  }
  void rest() {
    std::lock_guard lock(mutex_);
    armed_ = false;
    changed_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;
  void watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (!armed_) {
        changed_.wait(lock, stop, [&] { return armed_; });
        continue;
      }
      const auto deadline = deadline_;
      changed_.wait_until(lock, stop, deadline, [&] { return !armed_ || deadline_ != deadline; });
      if (armed_ && !stop.stop_requested() && Clock::now() >= deadline_) {
        on_timeout_(what_);
        std::_Exit(3);
      }
    }
  }

  std::function<void(const std::string&)> on_timeout_;
  std::mutex mutex_;
  std::condition_variable_any changed_;  // wakes up for a stop request too
  std::string what_;
  Clock::time_point deadline_;
  bool armed_ = false;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace longnet
