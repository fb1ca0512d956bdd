#include "hdf5_file.hpp"

#include <hdf5.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {
namespace {

constexpr hsize_t metadata_block = hsize_t{1}
                                   << 20;            // metadata lies together, in front of the data
constexpr hsize_t aligned_from = hsize_t{64} << 10;  // datasets of this size begin on a page
constexpr hsize_t alignment = 4096;

// Owns an identifier of the library; move-only.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle(hid_t id, Close closer) : id_(id), close_(closer) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }
  // For the close whose failure matters.
  bool close() { return close_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_;
  Close close_;
};

herr_t keep_innermost(unsigned depth, const H5E_error2_t* error, void* text) {
  if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

[[noreturn]] void fail(ExitCode code, const std::string& what, const std::filesystem::path& path) {
  std::string reason = "no reason given";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &reason);
  throw UserError(code, base::text("HDF5 cannot ", what, " in ", path.string(), " (", reason, ")"));
}

Handle checked(hid_t id, Handle::Close close, ExitCode code, const std::string& what,
               const std::filesystem::path& path) {
  if (id < 0) fail(code, what, path);
  return {id, close};
}

// The library must neither print its error stack nor load filter plugins from a folder that an
// environment variable names.
void quiet_library() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);
}

// The file's type of an element. bf16 is the upper half of an IEEE float; HDF5 converts it to float
// by itself.
Handle file_type(const IndexEntry& entry) {
  if (entry.type == StoredType::text) {
    hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, static_cast<size_t>(std::max<int64_t>(entry.bytes(), 1)));
    H5Tset_cset(text, H5T_CSET_UTF8);
    H5Tset_strpad(text, H5T_STR_NULLPAD);
    return {text, H5Tclose};
  }
  if (entry.type == StoredType::bf16) {
    hid_t bf16 = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(bf16, 15, 7, 8, 0, 7);
    H5Tset_precision(bf16, 16);
    H5Tset_ebias(bf16, 127);
    H5Tset_size(bf16, 2);
    return {bf16, H5Tclose};
  }
  switch (entry.type) {
    case StoredType::i32: return {H5Tcopy(H5T_STD_I32LE), H5Tclose};
    case StoredType::i64: return {H5Tcopy(H5T_STD_I64LE), H5Tclose};
    case StoredType::u64: return {H5Tcopy(H5T_STD_U64LE), H5Tclose};
    case StoredType::f32: return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
    case StoredType::f64: return {H5Tcopy(H5T_IEEE_F64LE), H5Tclose};
    default: return {H5Tcopy(H5T_STD_U8LE), H5Tclose};
  }
}

Handle file_space(const IndexEntry& entry) {
  if (entry.type == StoredType::text || entry.shape.empty())
    return {H5Screate(H5S_SCALAR), H5Sclose};
  const std::vector<hsize_t> dims(entry.shape.begin(), entry.shape.end());
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
}

Handle file_access() {
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_LATEST);
  H5Pset_alignment(access.get(), aligned_from, alignment);
  H5Pset_meta_block_size(access.get(), metadata_block);
#if H5_VERSION_GE(1, 10, 7)
  H5Pset_file_locking(access.get(), false,
                      true);  // the run lock guards the folder; some file systems refuse flock
#endif
  return access;
}

Handle dataset_creation() {
  Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.get(), false);
  return creation;
}

int64_t create_dataset(hid_t file, const IndexEntry& entry, hid_t links, hid_t creation,
                       const std::filesystem::path& path) {
  const Handle type = file_type(entry);
  const Handle space = file_space(entry);
  const Handle dataset = checked(
      H5Dcreate2(file, entry.path.c_str(), type.get(), space.get(), links, creation, H5P_DEFAULT),
      H5Dclose, ExitCode::io_error, "create the dataset " + entry.path, path);
  if (entry.bytes() == 0) return 0;
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) fail(ExitCode::io_error, "allocate the dataset " + entry.path, path);
  return static_cast<int64_t>(offset);
}

// A file that the system does not let grow (ulimit -f) leaves the library with a file that it can
// neither close nor forget.
void check_size_limit(const std::filesystem::path& path, const std::vector<IndexEntry>& entries) {
  uint64_t bytes = metadata_block;
  for (const IndexEntry& entry : entries) bytes += static_cast<uint64_t>(entry.bytes()) + alignment;
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  VALIDATE(bytes <= limit.rlim_cur, ExitCode::io_error, "cannot write ", path.string(),
           " (it needs ", base::human_bytes(static_cast<double>(bytes)), " and files may grow to ",
           base::human_bytes(static_cast<double>(limit.rlim_cur)),
           "): raise the limit (ulimit -f)");
}

}  // namespace

void open_library_before_mpi() {
  H5dont_atexit();
  H5open();
}

int64_t lay_out(const std::filesystem::path& path, std::vector<IndexEntry>& entries) {
  const base::FileWork work{"layout", path};
  check_size_limit(path, entries);
  quiet_library();
  const Handle access = file_access();
  const Handle creation = dataset_creation();
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.get(), 1);
  Handle file = checked(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()), H5Fclose,
                        ExitCode::io_error, "create the file", path);
  for (IndexEntry& entry : entries)
    entry.offset = create_dataset(file.get(), entry, links.get(), creation.get(), path);
  if (!file.close()) fail(ExitCode::io_error, "close the file", path);
  return static_cast<int64_t>(std::filesystem::file_size(path));
}

namespace {

// Result of a walk over all links.
struct Walk {
  std::vector<std::string> datasets;
  std::string refused;  // a link that is not hard
};

herr_t visit_link(hid_t group, const char* name, const H5L_info_t* info, void* data) {
  auto& walk = *static_cast<Walk*>(data);
  if (info->type != H5L_TYPE_HARD) {
    walk.refused = name;
    return 1;  // before anything follows it
  }
  H5O_info_t object;
  if (H5Oget_info_by_name2(group, name, &object, H5O_INFO_BASIC, H5P_DEFAULT) < 0) return -1;
  if (object.type == H5O_TYPE_DATASET) walk.datasets.push_back(std::string("/") + name);
  return 0;
}

bool same_shape(hid_t dataset, const IndexEntry& entry) {
  const Handle found(H5Dget_space(dataset), H5Sclose);
  const Handle wanted = file_space(entry);
  return H5Sextent_equal(found.get(), wanted.get()) > 0;
}

void check_dataset(hid_t file, const IndexEntry& entry, const std::filesystem::path& path) {
  const Handle dataset = checked(H5Dopen2(file, entry.path.c_str(), H5P_DEFAULT), H5Dclose,
                                 ExitCode::bad_data, "open the dataset " + entry.path, path);
  const Handle type(H5Dget_type(dataset.get()), H5Tclose);
  const Handle wanted = file_type(entry);
  const Handle creation(H5Dget_create_plist(dataset.get()), H5Pclose);
  const bool plain = H5Pget_layout(creation.get()) == H5D_CONTIGUOUS &&
                     H5Pget_nfilters(creation.get()) == 0 &&
                     H5Pget_external_count(creation.get()) == 0;
  VALIDATE(plain, ExitCode::bad_data, path.string(), ": the dataset ", entry.path,
           " is chunked, filtered or external: not written by this program");
  VALIDATE(H5Tequal(type.get(), wanted.get()) > 0 && same_shape(dataset.get(), entry),
           ExitCode::bad_data, path.string(), ": the dataset ", entry.path,
           " has another type or shape than the index says");
  const bool in_place =
      entry.bytes() == 0 || H5Dget_offset(dataset.get()) == static_cast<haddr_t>(entry.offset);
  VALIDATE(in_place, ExitCode::bad_data, path.string(), ": the dataset ", entry.path,
           " lies elsewhere than the index says");
}

}  // namespace

void check_layout(const std::filesystem::path& path, const std::vector<IndexEntry>& entries) {
  quiet_library();
  const Handle access = file_access();
  const Handle file = checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose,
                              ExitCode::bad_data, "open the file", path);
  Walk walk;
  const herr_t visited = H5Lvisit(file.get(), H5_INDEX_NAME, H5_ITER_NATIVE, visit_link, &walk);
  VALIDATE(walk.refused.empty(), ExitCode::bad_data, path.string(), ": '", walk.refused,
           "' is a link to another place: refused");
  if (visited < 0) fail(ExitCode::bad_data, "walk over the file", path);
  VALIDATE(walk.datasets.size() == entries.size(), ExitCode::bad_data, path.string(), " has ",
           walk.datasets.size(), " datasets, its index ", entries.size());
  for (const IndexEntry& entry : entries) check_dataset(file.get(), entry, path);
}

}  // namespace trireme::checkpoint
