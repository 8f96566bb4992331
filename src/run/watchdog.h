// Ends a run that makes no progress: others would wait for ever for a rank that never arrives.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>

namespace longnet {

class Watchdog {
 public:
  // What was watched and `verdict` are printed; the process then ends with exit code 3.
  explicit Watchdog(int rank, std::string verdict = "")
      : rank_(rank),
        verdict_(std::move(verdict)),
        thread_([this](const std::stop_token& stop) { watch(stop); }) {}

  void expect(const std::string& what, double within_s) {
    std::lock_guard lock(mutex_);
    what_ = what;
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(within_s));
    changed_.notify_all();
  }
  void rest() {
    std::lock_guard lock(mutex_);
    deadline_ = kNever;
    changed_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever{std::chrono::hours(1 << 20)};
  void watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      const auto deadline = deadline_;
      const bool in_time =
          changed_.wait_until(lock, stop, deadline, [&] { return deadline_ != deadline; });
      if (!in_time && !stop.stop_requested()) {
        std::cerr << "\nerror: rank " << rank_ << " waited too long in '" << what_ << "'"
                  << verdict_ << ", exit 3\n";
        std::_Exit(3);
      }
    }
  }

  int rank_;
  std::string verdict_;
  std::mutex mutex_;
  std::condition_variable_any changed_;  // wakes up for a stop request too
  std::string what_;
  Clock::time_point deadline_ = kNever;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace longnet
