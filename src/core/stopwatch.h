// Clocks of this process, in seconds.
#pragma once
#include <chrono>
#include <ctime>

namespace longnet {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// CPU seconds of the calling thread: time that other processes take of its core does not count.
inline double thread_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Adds the time from its construction to stop() or its destruction to a number of seconds.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    if (running_) stop();
  }
  void stop() {
    seconds_ += steady_seconds() - begin_s_;
    running_ = false;
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const double begin_s_ = steady_seconds();
  bool running_ = true;
};

}  // namespace longnet
