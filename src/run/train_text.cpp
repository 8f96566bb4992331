#include "run/train_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "core/check.h"
#include "core/random.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 17> kTextEndings = {
    ".txt", ".md", ".rst", ".tex", ".pm",  ".pl", ".pod", ".py",  ".c",
    ".tcc", ".h",  ".cc",  ".cpp", ".hpp", ".rs", ".go",  ".java"};
constexpr int64_t kMostBytes = int64_t{1} << 31;

bool is_text(const fs::path& path) {
  return std::ranges::count(kTextEndings, path.extension().string()) > 0;
}

// A machine that has built this program has the first; every Debian has the second.
std::string shipped_text() {
  std::error_code error;
  if (fs::is_directory("/usr/include/c++", error)) return "/usr/include/c++";
  for (const fs::directory_entry& entry : fs::directory_iterator("/usr/lib", error))
    if (fs::is_directory(entry.path() / "perl-base", error))
      return (entry.path() / "perl-base").string();
  throw UsageError(
      "train.text: this system has neither /usr/include/c++ nor /usr/lib/*/perl-base\n"
      "  hint: name a text file, or a folder of them: --set train.text=FILE");
}

std::vector<fs::path> files_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied))
    if (entry.is_regular_file(error) && !entry.is_symlink(error) && is_text(entry.path()))
      files.push_back(entry.path());
  if (files.empty())
    throw UsageError("train.text: the folder ", path, " holds no text files\n  hint: name files");
  std::ranges::sort(files);
  return files;
}

void append_file(const fs::path& file, std::vector<uint8_t>& bytes) {
  std::error_code error;
  if (!fs::is_regular_file(file, error))
    throw UsageError("train.text: ", file.string(), " is no file\n  hint: name a text file");
  std::ifstream in(file, std::ios::binary);
  bytes.insert(bytes.end(), std::istreambuf_iterator<char>(in), {});
  if (!in.is_open() || in.bad())
    throw UsageError("train.text: cannot read ", file.string(), "\n  hint: check its rights");
  if (int64_t(bytes.size()) > kMostBytes)
    throw UsageError("train.text: more than ", kMostBytes, " bytes\n  hint: name fewer files");
}

}  // namespace

TextBytes read_text(const std::vector<std::string>& paths, double held_out) {
  std::vector<fs::path> files;
  for (const std::string& path : paths.empty() ? std::vector{shipped_text()} : paths)
    for (fs::path& file : files_of(path)) files.push_back(std::move(file));
  const auto every = held_out > 0 ? std::llround(1 / held_out) : 0;
  const bool by_files = every > 1 && std::ssize(files) >= every;
  const auto is_held_out = [&](size_t i) { return int64_t(i) % every == every / 2; };
  TextBytes text;
  for (const bool held : {false, true}) {
    for (size_t i = 0; i < files.size(); ++i)
      if (by_files ? is_held_out(i) == held : !held) append_file(files[i], text.bytes);
    if (!held) text.trained = std::ssize(text.bytes);
  }
  if (!by_files) text.trained = int64_t(double(text.bytes.size()) * (1 - held_out));
  return text;
}

TrainText::TrainText(TextBytes text, int64_t seq_len)
    : bytes_(std::move(text.bytes)), trained_(text.trained), seq_len_(seq_len) {
  if (trained_ <= seq_len || (held_out() > 0 && held_out() <= seq_len))
    throw UsageError("train.text: ", trained_, " bytes to train on and ", held_out(),
                     " held out, but a sequence has ", seq_len + 1,
                     "\n  hint: more text, or a smaller sweep.seq_len");
}

void TrainText::append(int64_t begin, std::vector<int32_t>& out) const {
  const auto first = bytes_.begin() + begin;
  out.insert(out.end(), first, first + seq_len_ + 1);
}

void TrainText::batch_of_step(uint64_t seed, int64_t step, int64_t batch,
                              std::vector<int32_t>& out) const {
  out.clear();
  const uint64_t places = uint64_t(trained_ - seq_len_);
  for (int64_t b = 0; b < batch; ++b) {
    const PhiloxBlock block = row_words({seed, Tensor::kKey, step, b}, 0);
    append(int64_t((uint64_t{block.word[0]} << 32 | block.word[1]) % places), out);
  }
}

void TrainText::held_out_batch(int64_t i, int64_t batches, int64_t batch,
                               std::vector<int32_t>& out) const {
  out.clear();
  const int64_t places = held_out() - seq_len_;
  for (int64_t b = 0; b < batch; ++b)
    append(trained_ + (i * batch + b) * places / (batches * batch), out);
}

}  // namespace longnet
