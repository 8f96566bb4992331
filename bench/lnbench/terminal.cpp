#include "lnbench/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "comm/mpi/mpi_world.h"
#include "core/check.h"
#include "io/expand.h"
#include "io/units.h"

namespace longnet {

namespace {
// Open MPI gives its processes a pseudo-terminal even when mpirun's own output goes to a file.
bool is_terminal(int file_descriptor) {
  return !launched_world_size() && isatty(file_descriptor) != 0;
}
}  // namespace

bool use_color(const Options& options, int file_descriptor) {
  if (options.color == "always") return true;
  if (options.color == "never" || std::getenv("NO_COLOR") != nullptr) return false;
  return is_terminal(file_descriptor);
}

std::string colored(std::string_view text, std::string_view status, bool color) {
  if (!color) return std::string(text);
  const char* code = status == "ok" ? "32" : status.substr(0, 7) == "skipped" ? "33" : "31";
  return concat("\x1b[", code, "m", text, "\x1b[0m");
}

void print_notes(const Options& options, const Config& config) {
  if (options.quiet || launched_rank() != 0) return;
  for (const std::string& note : replaced_choices(config, known_names()))
    std::cerr << "note: " << note << "\n";
}

Progress::Progress(const Options& options, bool is_root, int points)
    : enabled_(is_root && !options.quiet && options.progress != ProgressStyle::kNone),
      rewrite_(options.progress == ProgressStyle::kAuto && is_terminal(STDERR_FILENO)),
      points_(points) {}

void Progress::clear() {
  if (enabled_ && rewrite_) std::cerr << "\r\x1b[K" << std::flush;
}

void Progress::start(int index, const std::string& what, double estimated_s) {
  index_ = index;
  what_ = what;
  last_step_ = std::chrono::steady_clock::now();
  if (!enabled_ || !rewrite_) return;
  clear();
  std::cerr << "[" << index_ << "/" << points_ << "] " << what;
  if (estimated_s > 0) std::cerr << "  (about " << format_seconds(estimated_s) << ")";
  std::cerr << std::flush;
}

void Progress::step(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || (!rewrite_ && now - last_step_ < std::chrono::seconds(30))) return;
  last_step_ = now;
  clear();
  std::cerr << "[" << index_ << "/" << points_ << "] " << what_ << "  " << text
            << (rewrite_ ? "" : "\n") << std::flush;
}

void Progress::done(const std::string& outcome, double took_s, double estimated_s,
                    double estimated_left_s) {
  took_s_ += took_s;
  estimated_s_ += estimated_s;
  if (!enabled_) return;
  clear();
  std::cerr << "[" << index_ << "/" << points_ << "] " << outcome;
  if (estimated_s_ > 0 && estimated_left_s > 0)
    std::cerr << "  ETA " << format_seconds(estimated_left_s * took_s_ / estimated_s_);
  std::cerr << "\n";
}

void Progress::note(const std::string& line) {
  if (!enabled_) return;
  clear();
  std::cerr << line << "\n";
}

}  // namespace longnet
