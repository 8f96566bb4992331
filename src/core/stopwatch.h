// Adds the time from its construction to stop() or its destruction to a number of seconds.
#pragma once
#include <chrono>

namespace longnet {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), begin_(Clock::now()) {}
  ~Stopwatch() {
    if (running_) stop();
  }
  void stop() {
    seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
    running_ = false;
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point begin_;
  bool running_ = true;
};

}  // namespace longnet
