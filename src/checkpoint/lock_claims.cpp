#include "lock_claims.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <random>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"

namespace trireme::checkpoint {
namespace {

constexpr std::string_view prefix = ".run.lock.";
constexpr uint64_t largest_claim = uint64_t{64} << 10;

LockHolder holder_from_json(const std::string& text, const std::string& name) {
  // The heartbeat follows as a line of its own.
  const std::string first = text.substr(0, text.find('\n'));
  try {
    const auto json = nlohmann::json::parse(first);
    LockHolder holder;
    // Numbers by reference: get<int64_t> would cast a double of any size, which is undefined
    // behaviour.
    holder.job = json.at("job").get<std::string>();
    if (json.contains("cluster")) holder.cluster = json["cluster"].get<std::string>();
    holder.host = json.at("host").get<std::string>();
    holder.pid = json.at("pid").get_ref<const int64_t&>();
    holder.started = json.at("started").get_ref<const int64_t&>();
    holder.namespace_id = json.at("namespace").get<std::string>();
    holder.since = json.at("since").get<std::string>();
    if (json.contains("folder")) holder.folder = json["folder"].get_ref<const uint64_t&>();
    holder.fence = json.at("fence").get_ref<const int64_t&>();
    holder.released = json.at("released").get<bool>();
    return holder;
  } catch (const nlohmann::json::exception& error) {
    throw UserError(ExitCode::locked,
                    base::text(name, " is not a run lock (", error.what(),
                               "): make sure that no run uses the folder, then remove the file"));
  }
}

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A file of this process with that text; removed by the caller. Its mode is what the umask leaves,
// which mkstemp would not ask.
std::filesystem::path private_file(const std::filesystem::path& folder, std::string_view text) {
  std::random_device random;
  std::filesystem::path name;
  base::FileDescriptor fd;
  for (int attempt = 0; !fd.valid(); ++attempt) {
    name = folder / base::text(".run.lock.new.", ::getpid(), ".", random());
    fd = base::FileDescriptor(
        ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd.valid() && (errno != EEXIST || attempt == 100))
      base::throw_errno(errno, "create a lock file", folder);
  }
  try {
    base::write_all(fd.get(), text, name);
  } catch (...) {
    ::unlink(name.c_str());
    throw;
  }
  ::fsync(fd.get());
  return name;
}

// Whether `file` has got another name. Opened for it: a client of NFS then asks the server.
bool has_two_names(const std::filesystem::path& file) {
  const base::FileDescriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  return fd.valid() && ::fstat(fd.get(), &info) == 0 && info.st_nlink == 2;
}

}  // namespace

std::filesystem::path claim_path(const std::filesystem::path& folder, int64_t fence) {
  return folder / (std::string(prefix) + std::to_string(fence));
}

std::vector<int64_t> claimed_fences(const std::filesystem::path& folder) {
  std::vector<int64_t> fences;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string digits = name.substr(prefix.size());
    if (digits.empty() || digits.size() > 18 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      continue;
    if (digits.size() > 1 && digits.front() == '0') continue;  // no claim_path()
    fences.push_back(std::stoll(digits));
  }
  std::sort(fences.rbegin(), fences.rend());
  return fences;
}

std::optional<Claim> current_claim(const std::filesystem::path& folder) {
  for (const int64_t fence : claimed_fences(folder)) {
    Claim claim;
    claim.path = claim_path(folder, fence);
    std::string text;
    try {
      text = base::read_file(claim.path, largest_claim);
    } catch (const UserError& error) {
      if (error.code() != ExitCode::input_missing) throw;
      continue;  // removed by a later holder since the listing
    }
    struct stat info {};
    if (::stat(claim.path.c_str(), &info) != 0) {
      if (errno != ENOENT) base::throw_errno(errno, "look at", claim.path);
      continue;  // likewise
    }
    claim.modified = seconds_of(info.st_mtim);
    claim.changed = seconds_of(info.st_ctim);
    claim.holder = holder_from_json(text, claim.path.string());
    // The next fence is counted from what the claim says: one that says less than its name would be
    // found and not followed, for ever.
    VALIDATE(claim.holder.fence == fence, ExitCode::locked, claim.path.string(),
             " is not a run lock (it speaks of fence ", claim.holder.fence,
             "): make sure that no run uses the folder, then remove the file");
    return claim;
  }
  return std::nullopt;
}

bool try_claim(const std::filesystem::path& folder, const LockHolder& holder) {
  const std::filesystem::path temporary = private_file(folder, to_json(holder) + "\n");
  const std::filesystem::path claim = claim_path(folder, holder.fence);
  int failed = ::link(temporary.c_str(), claim.c_str()) == 0 ? 0 : errno;
  // A client of NFS that asks again because the answer was lost is told of the link that it has
  // made: link(2) may fail where it succeeded.
  if (failed == EEXIST && has_two_names(temporary)) failed = 0;
  ::unlink(temporary.c_str());
  if (failed == EEXIST) return false;
  if (failed != 0) base::throw_errno(failed, "create the run lock", claim);
  // Holders remove the claims below theirs, so a late comer can find its number free again: then a
  // greater one exists.
  if (claimed_fences(folder).front() == holder.fence) return true;
  ::unlink(claim.c_str());
  return false;
}

void rewrite_claim(const std::filesystem::path& folder, const LockHolder& holder) {
  const std::filesystem::path temporary = private_file(folder, to_json(holder) + "\n");
  const std::filesystem::path claim = claim_path(folder, holder.fence);
  if (::rename(temporary.c_str(), claim.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    base::throw_errno(error, "replace", claim);
  }
}

void remove_claims_below(const std::filesystem::path& folder, int64_t fence) {
  for (const int64_t other : claimed_fences(folder)) {
    if (other < fence) ::unlink(claim_path(folder, other).c_str());
  }
}

double server_time(const std::filesystem::path& folder) {
  const std::filesystem::path temporary = private_file(folder, "");
  struct stat info {};
  const int failed = ::stat(temporary.c_str(), &info);
  const int error = errno;
  ::unlink(temporary.c_str());
  if (failed != 0) base::throw_errno(error, "look at", temporary);
  return seconds_of(info.st_mtim);
}

std::string to_json(const LockHolder& holder) {
  nlohmann::ordered_json json;
  json["job"] = holder.job;
  json["cluster"] = holder.cluster;
  json["host"] = holder.host;
  json["pid"] = holder.pid;
  json["started"] = holder.started;
  json["namespace"] = holder.namespace_id;
  json["since"] = holder.since;
  json["folder"] = holder.folder;
  json["fence"] = holder.fence;
  json["released"] = holder.released;
  return json.dump();
}

}  // namespace trireme::checkpoint
