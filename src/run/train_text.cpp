#include "run/train_text.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "core/check.h"
#include "core/random.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 16> kTextEndings = {
    ".txt", ".md", ".rst", ".tex", ".pm",  ".pl", ".pod", ".py",
    ".c",   ".h",  ".cc",  ".cpp", ".hpp", ".rs", ".go",  ".java"};
constexpr int64_t kMostBytes = int64_t{1} << 31;

bool is_text(const fs::path& path) {
  return std::ranges::count(kTextEndings, path.extension().string()) > 0;
}

// Every Debian has these: perl-base is essential.
std::vector<std::string> shipped_text() {
  std::error_code error;
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/usr/lib", error))
    if (fs::is_directory(entry.path() / "perl-base", error))
      found.push_back((entry.path() / "perl-base").string());
  if (found.empty())
    throw UsageError(
        "train.text: this system has no /usr/lib/*/perl-base\n  hint: name a text file, or a "
        "folder of them: --set train.text=FILE");
  std::ranges::sort(found);
  return found;
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

}  // namespace

std::vector<uint8_t> read_text_bytes(const std::vector<std::string>& paths) {
  std::vector<uint8_t> bytes;
  for (const std::string& path : paths.empty() ? shipped_text() : paths)
    for (const fs::path& file : files_of(path)) {
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
  return bytes;
}

TrainText::TrainText(std::vector<uint8_t> bytes, double held_out, int64_t seq_len)
    : bytes_(std::move(bytes)), seq_len_(seq_len) {
  trained_ = int64_t(double(bytes_.size()) * (1 - held_out));
  const bool long_enough = trained_ > seq_len && (held_out <= 0 || this->held_out() > seq_len);
  if (!long_enough)
    throw UsageError("train.text: ", trained_, " bytes to train on and ", this->held_out(),
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

void TrainText::held_out_batch(int64_t i, int64_t batch, std::vector<int32_t>& out) const {
  out.clear();
  const int64_t sequences = std::max<int64_t>(1, (held_out() - 1) / seq_len_);
  for (int64_t b = 0; b < batch; ++b)
    append(trained_ + (i * batch + b) % sequences * seq_len_, out);
}

}  // namespace longnet
