// Damaged inputs for every parser: files that ship, changed at random from a seed.
//
//   fuzz config --seconds 5              fuzz result --runs 1000000 --seed 7
//
// Each run takes an input of the target's corpus, changes it in one to eight places, and hands it
// over. Fine: UsageError, or a value that survives being written and read again. Everything else
// ends the program with exit code 1: a crash, another exception, ten seconds of work without an
// end, a minute under the address sanitizer (ten times that on the clock: it may wait), more than
// 2 GiB of memory. The input then stands in fuzz-TARGET.input, and `fuzz TARGET --input FILE` runs
// it again.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <iostream>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/check.h"
#include "fuzz_targets.h"
#include "json/json_reader.h"

namespace longnet {
namespace {

using Random = std::mt19937_64;
size_t below(Random& random, size_t n) { return n == 0 ? 0 : size_t(random() % n); }

// Tokens that break careless parsers, separated by blanks.
const std::vector<std::string> kHostileTokens = [] {
  std::istringstream words(
      "0 -1 1e308 -1e308 1e-308 9223372036854775807 9223372036854775808 -9223372036854775808 "
      "4294967296 2147483647 1e400 0.1 null true {} [] \"\" \"world\" \"8K\" "
      "\"9223372036854775807B\" \"\\u001b[31m\" \xff \\ // \"extends\":\"x\", , : { [ } ] == && ( "
      "! @ x "
      "%");
  return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
}();

// Replaces the number or word at a random place by another one.
void replace_word(std::string& text, Random& random) {
  const auto in_word = [&](size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) != 0 ||
                               text[i] == '.' || text[i] == '-' || text[i] == '_');
  };
  size_t begin = below(random, text.size());
  while (begin < text.size() && !in_word(begin)) ++begin;
  size_t end = begin;
  while (in_word(end)) ++end;
  while (begin > 0 && in_word(begin - 1)) --begin;
  text.replace(begin, end - begin, kHostileTokens[below(random, kHostileTokens.size())]);
}

void mutate(std::string& text, const std::string& other, Random& random) {
  const size_t at = below(random, text.size() + 1);
  const size_t length = std::min(below(random, 64), text.size() - at);
  switch (below(random, 8)) {
    case 0:
      if (at < text.size()) text[at] = char(text[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, text.substr(at, length));
      break;
    case 3:
      text.insert(at, kHostileTokens[below(random, kHostileTokens.size())]);
      break;
    case 4:
      text.replace(at, length, other.substr(below(random, other.size()), below(random, 200)));
      break;
    case 5:  // deep, or long
      for (size_t i = below(random, 300); i > 0; --i) text.insert(at, length > 32 ? "[" : "(");
      break;
    default:
      replace_word(text, random);
  }
}

// The input at work, for the handler of signals.
std::string input_at_work, input_file;

void keep_input() {
  const int fd = ::open(input_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || ::write(fd, input_at_work.data(), input_at_work.size()) < 0) return;
  ::close(fd);
}

void die(int signal) {
  static constexpr char kText[] = "fuzz: a crash, or no end in time\n";
  if (::write(STDERR_FILENO, kText, sizeof kText - 1) >= 0) keep_input();
  std::signal(signal, SIG_DFL);
  ::_exit(1);
}

constexpr int64_t kMostBytes = int64_t{2} << 30;
#if defined(LONGNET_ADDRESS_SANITIZER)
constexpr int kMostSeconds = 60;  // plans of models are eight times as slow
#else
constexpr int kMostSeconds = 10;
#endif

void set_limits() {
  static std::array<char, 65536> stack;  // a handler needs one where the own has overflowed
  const stack_t other{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = die;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGPROF})
    ::sigaction(signal, &action, nullptr);
#if !defined(LONGNET_ADDRESS_SANITIZER)  // which reserves terabytes
  const rlimit memory{kMostBytes, kMostBytes};
  ::setrlimit(RLIMIT_AS, &memory);
#endif
}

// The most memory that was ever resident.
int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

// Signals after so many seconds of the program's own work, while others may have the cores, and
// after so many on the clock; 0: none.
void set_alarms(int work_s, unsigned clock_s) {
  const itimerval work{.it_interval = {}, .it_value = {.tv_sec = work_s, .tv_usec = 0}};
  ::setitimer(ITIMER_PROF, &work, nullptr);
  ::alarm(clock_s);
}

// False: neither refused nor understood, or at the cost of too much memory.
bool survives(const Target& target, int64_t run, int64_t& accepted) {
  const int64_t before_bytes = peak_bytes();
  set_alarms(kMostSeconds, 10 * kMostSeconds);
  try {
    target.parse(input_at_work, run);
    ++accepted;
  } catch (const UsageError&) {
  } catch (const std::exception& e) {
    std::cerr << concat("fuzz: ", e.what(), "\n");
    keep_input();
    return false;
  }
  set_alarms(0, 0);
  if (peak_bytes() - before_bytes <= kMostBytes) return true;
  std::cerr << "fuzz: more than 2 GiB of memory\n";
  keep_input();
  return false;
}

struct FuzzOptions {
  std::string target, input;
  double seconds = std::numeric_limits<double>::infinity();
  int64_t runs = std::numeric_limits<int64_t>::max();
  uint64_t seed = 1;
};

FuzzOptions parse_options(const std::vector<std::string>& words) {
  FuzzOptions o;
  if (!words.empty()) o.target = words[0];
  for (size_t i = 1; i < words.size(); i += 2) {
    const std::string& name = words[i];
    if (i + 1 == words.size()) throw UsageError(name, ": a name without a value");
    const std::string& value = words[i + 1];
    if (name == "--seconds")
      o.seconds = std::stod(value);
    else if (name == "--runs")
      o.runs = std::stoll(value);
    else if (name == "--seed")
      o.seed = std::stoull(value);
    else if (name == "--input")
      o.input = value;
    else
      throw UsageError(name, ": no such option\n  hint: --seconds, --runs, --seed or --input");
  }
  return o;
}

int fuzz(const FuzzOptions& o) {
  const Scratch scratch;
  const Target target = make_target(o.target, scratch);
  input_file = concat("fuzz-", o.target, ".input");
  set_limits();
  int64_t accepted = 0, run = 0;
  if (!o.input.empty()) {
    input_at_work = read_file_text(o.input, "");
    for (; run < 24; ++run)
      if (!survives(target, run, accepted)) return 1;
    return 0;
  }
  for (const std::string& whole : target.corpus) {  // shipped files are undamaged
    input_at_work = whole;
    if (!survives(target, 1, accepted)) return 1;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (accepted = 0; run < o.runs && elapsed() < o.seconds; ++run) {
    Random random(o.seed * 0x9E3779B97F4A7C15u + uint64_t(run));
    input_at_work = target.corpus[below(random, target.corpus.size())];
    const std::string& other = target.corpus[below(random, target.corpus.size())];
    for (size_t changes = 1 + below(random, 8); changes > 0; --changes)
      mutate(input_at_work, other, random);
    if (survives(target, run, accepted)) continue;
    std::cerr << concat("fuzz: ", o.target, ", run ", run, " of seed ", o.seed, "\n");
    return 1;
  }
  std::cout << concat(o.target, ": ", run, " inputs, ", accepted, " accepted, none broke it, ",
                      std::lround(elapsed()), " s\n");
  return 0;
}

}  // namespace
}  // namespace longnet

int main(int argc, char** argv) {
  using namespace longnet;
  try {
    return fuzz(parse_options(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << "\n";
    return 2;
  }
}
