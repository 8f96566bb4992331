#include "run/watchdog.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "comm/host_transport.h"
#include "core/check.h"

namespace longnet {
namespace {
constexpr double kStoppedSeconds = 3;  // between two looks, which are one apart

int64_t unix_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

Watchdog::Watchdog(int rank)
    : rank_(rank),
      started_ms_(unix_ms()),
      thread_([this, begin_s = steady_seconds()](const std::stop_token& stop) {
        watch(stop, begin_s);  // the thread may start late
      }) {}

Watchdog::~Watchdog() {
  thread_ = {};  // joined
  leave();
}

void Watchdog::leave() {
  if (fd_ >= 0) ::close(fd_);
  if (!start_file_.empty()) ::unlink(start_file_.c_str());
  fd_ = -1;
  start_file_.clear();
}

void Watchdog::expect_start(double within_s) {
  std::error_code no_folder;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(no_folder);
  const Launch launch = launched().value_or(Launch{});
  if (!launch.job.empty() && !no_folder) {
    const std::string name = concat("longnet-", ::getuid(), "-", launch.job, ".alive");
    const std::string file = (folder / name).string();
    join(file);
    const std::lock_guard lock(mutex_);
    if (fd_ >= 0) start_file_ = file;
    ranks_ = launch.on_one_machine ? launch.ranks : 0;
  }
  expect("the start", within_s);
}

void Watchdog::expect(const std::string& what, double within_s) {
  {
    const std::lock_guard lock(mutex_);
    what_ = what;
  }
  ++steps_;
  within_s_ = kForever;
  progress();
  within_s_ = within_s;
}

void Watchdog::join(const std::string& file) {
  const std::lock_guard lock(mutex_);
  leave();
  // A machine that does not see the folder watches alone.
  fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  struct stat is {};
  if (fd_ >= 0 && (::fstat(fd_, &is) != 0 || !S_ISREG(is.st_mode) || is.st_uid != ::getuid() ||
                   is.st_nlink != 1)) {  // somebody else's, or one by another name
    ::close(fd_);
    fd_ = -1;
  }
}

Watchdog::Beat Watchdog::beat() const {
  const int64_t now = unix_ms();
  return {now, steps_, now - int64_t((steady_seconds() - begin_s_) * 1000)};
}

bool Watchdog::hear(int rank, Beat& other) const {
  const bool stands =
      ::pread(fd_, &other, sizeof other, off_t(sizeof other) * rank) == sizeof other;
  // A start file may be what a killed job left.
  if (!stands || (!start_file_.empty() && other.unix_ms < started_ms_)) other = {};
  return stands;
}

// Takes the latest progress of another rank for its own, where it is later.
bool Watchdog::others_made_progress() {
  double begin_s = begin_s_;
  const Beat mine = beat();
  int64_t latest = mine.progress_ms;
  Beat other;
  for (int r = 0; fd_ >= 0 && hear(r, other); ++r)
    latest = std::max(latest, std::min(other.progress_ms, mine.unix_ms));
  const double later_s = double(latest - mine.progress_ms) / 1000;
  if (later_s < 0.01) return false;  // clocks differ by as much
  begin_s_.compare_exchange_strong(begin_s, begin_s + later_s);
  return true;
}

std::string Watchdog::missing() const {
  constexpr int64_t kSilentMs = 5000;
  std::string text;
  const Beat mine = beat();
  for (int r = 0; fd_ >= 0; ++r) {
    Beat other;
    if (!hear(r, other) && r >= ranks_) break;
    const bool heard = other.unix_ms > 0;
    if (r == rank_ || (!heard && r >= ranks_)) continue;
    if (const int64_t silent = mine.unix_ms - other.unix_ms; heard && silent > kSilentMs)
      text += concat("; rank ", r, " gave no sign of life for ", silent / 1000, " s");
    else if (other.steps < mine.steps)
      text += concat("; rank ", r, " has not come so far");
  }
  return text;
}

// Looks once a second instead of being told of progress: a wake-up would disturb what is measured.
void Watchdog::watch(const std::stop_token& stop, double looked_s) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const double left_s = begin_s_ + within_s_ - steady_seconds();
    stopped_.wait_for(lock, stop, std::chrono::duration<double>(std::clamp(left_s, 0.0, 1.0)),
                      [] { return false; });
    if (stop.stop_requested()) return;
    // A process that was itself stopped (SIGSTOP, a sleeping machine) reports no other rank:
    // it was the missing one.
    if (const double slept_s = steady_seconds() - looked_s; slept_s > kStoppedSeconds)
      begin_s_ = begin_s_ + slept_s;
    looked_s = steady_seconds();
    const Beat mine = beat();
    if (fd_ >= 0 && ::pwrite(fd_, &mine, sizeof mine, off_t(sizeof mine) * rank_) < 0) {
      ::close(fd_);  // a full disk: the others see this rank as silent, which it is
      fd_ = -1;
    }
    if (steady_seconds() < begin_s_ + within_s_ || others_made_progress()) continue;
    std::cerr << concat("\nerror: rank ", rank_, " waited too long in '", what_, "'", missing(),
                        "; a rank did not arrive. Giving up, exit 3\n");
    leave();
    std::_Exit(3);
  }
}

}  // namespace longnet
