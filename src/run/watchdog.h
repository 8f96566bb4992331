// Ends a run that makes no progress: others would wait for ever for a rank that never arrives.
//
//   Watchdog watchdog(launched_rank());       // first thing of a command, before MPI starts
//   watchdog.expect_start(90);                // ranks of one machine see each other
//   watchdog.join(folder + "/ranks.alive");   // all that see the folder do
//   watchdog.expect("a point", 90);           // a step: it ends or makes progress within 90 s
//   watchdog.progress();                      // the step goes on: its time begins anew
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "core/stopwatch.h"

namespace longnet {

// How much longer than its timeout a point may keep the others waiting.
inline constexpr double kGraceSeconds = 30;

class Watchdog {
 public:
  // When a step takes too long, prints the step and the missing ranks, and ends the process with
  // exit code 3.
  explicit Watchdog(int rank);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void expect(const std::string& what, double within_s);
  // Until the first other step: the ranks of a launcher come together.
  void expect_start(double within_s);
  void progress() { begin_s_ = steady_seconds(); }
  void rest() { within_s_ = kForever; }
  // Every rank writes into `file`, once a second, that it lives, how many steps it has begun and
  // when it made progress: the progress of one is that of all, who may be waiting for it.
  void join(const std::string& file);

 private:
  static constexpr double kForever = 1e300;
  struct Beat {
    int64_t unix_ms = 0, steps = 0, progress_ms = 0;
  };
  void watch(const std::stop_token& stop, double looked_s);
  Beat beat() const;
  bool hear(int rank, Beat& other) const;  // false: none stands there
  bool others_made_progress();
  std::string missing() const;  // "; rank 1 gave no sign of life for 31 s"
  void leave();                 // closes what join() has opened

  int rank_, fd_ = -1;
  int64_t started_ms_;
  int ranks_ = 0;           // that must be in the file; 0: not known
  std::string start_file_;  // is removed when it is left
  std::atomic<double> begin_s_ = 0, within_s_ = kForever;
  std::atomic<int64_t> steps_ = 0;
  mutable std::mutex mutex_;             // guards what_, fd_, ranks_ and start_file_
  std::condition_variable_any stopped_;  // wakes up for a stop request
  std::string what_;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace longnet
