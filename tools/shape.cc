#include "tools/shape.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/file.h"
#include "io/text.h"
#include "tools/read_json.h"

namespace flashlatent::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kLatentDim = 576, kLatentValueDim = 512;
constexpr double kLeastNumber = 1e-6, kMostNumber = 1e12;  // limits of times, TB/s and TFLOP/s

/// A value as a message shows it.
std::string shown(const Json& value) {
  return io::printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

bool is_measured(const Json& value) {
  return value.is_number() && value >= kLeastNumber && value <= kMostNumber;
}

/// Reads one shape. `error` has the first thing that is wrong.
class ShapeReader {
 public:
  explicit ShapeReader(const Json& json) : json_(json) {}

  Result<Shape> read() {
    if (!json_.is_object()) return wrong(fmt::format("is {}; an object is accepted", shown(json_)));
    const Json kind = json_.value("kind", Json());
    // Other libraries call it "mla".
    shape_.latent = kind == "latent" || kind == "mla";
    if (!shape_.latent && kind != "paged") {
      return wrong(fmt::format("kind is {}; \"latent\" and \"paged\" are accepted", shown(kind)));
    }
    int batch = 0;
    take("b", batch, 1 << 20);
    take("s_q", shape_.query_tokens, 1 << 16);
    take("h_q", shape_.heads, 1 << 16);
    take("h_kv", shape_.kv_heads, 1 << 16);
    take("d", shape_.dim, 4096);
    if (error_.empty() && shape_.latent && (shape_.dim != kLatentDim || shape_.kv_heads != 1)) {
      error_ = fmt::format("d is {} and h_kv is {}; of a latent cache 576 and 1 are accepted", shape_.dim,
                           shape_.kv_heads);
    }
    take_lengths(batch);
    take_times();
    if (!error_.empty()) return wrong(error_);
    return std::move(shape_);
  }

 private:
  static Status wrong(const std::string& why) { return {StatusCode::kInvalidArgument, why}; }

  void take(const char* field, int& to, int most) {
    if (!error_.empty()) return;
    const Json value = json_.value(field, Json());
    if (value.is_number_integer() && value >= 1 && value <= most) {
      to = value;
    } else {
      error_ = fmt::format("{} is {}; a whole number from 1 to {} is accepted", field, shown(value), most);
    }
  }

  void take_lengths(int batch) {
    if (!error_.empty()) return;
    constexpr int kMost = 1 << 30;
    const Json lengths = json_.value("lengths", Json());
    auto fits = [](const Json& x) { return x.is_number_integer() && x >= 0 && x <= kMost; };
    if (fits(lengths)) {
      shape_.lengths.assign(batch, lengths);
    } else if (lengths.is_array() && lengths.size() == static_cast<std::size_t>(batch) &&
               std::all_of(lengths.begin(), lengths.end(), fits)) {
      shape_.lengths = lengths.get<std::vector<int>>();
      shape_.varied = true;
    } else {
      error_ = fmt::format(
          "lengths is {}; a whole number from 0 to {}, or a list of b = {} of these, is "
          "accepted",
          shown(lengths), kMost, batch);
    }
  }

  void take_times() {
    if (!error_.empty() || !json_.contains("ms")) return;
    const Json& times = json_.at("ms");
    if (!times.is_object()) error_ = fmt::format("ms is {}; an object of times is accepted", shown(times));
    if (!times.is_object()) return;
    for (const auto& [library, ms] : times.items()) {
      if (!is_measured(ms)) {
        error_ = fmt::format("ms.{} is {}; a number from {} to {} is accepted", io::printable(library, 60),
                             shown(ms), kLeastNumber, kMostNumber);
        return;
      }
      shape_.times.emplace_back(library, ms);
    }
  }

  const Json& json_;
  Shape shape_;
  std::string error_;
};

/// The list of shapes; sets what is beside it in `shapes`.
Result<const Json*> list_of(const Json& json, const io::ByteSource& source, Shapes& shapes) {
  if (json.is_array()) return &json;
  if (!json.is_object() || !json.contains("shapes") || !json.at("shapes").is_array()) {
    return source.error("has no list of shapes; a list, or an object whose \"shapes\" is one, is accepted");
  }
  if (json.contains("gpu")) {
    if (!json.at("gpu").is_string()) {
      return source.error(fmt::format("gpu is {}; a device's name is accepted", shown(json.at("gpu"))));
    }
    shapes.gpu = json.at("gpu");
    const Json roof = json.value("roof", Json::object());
    const Json read = roof.is_object() ? roof.value("read_tbps", Json()) : Json();
    const Json matmul = roof.is_object() ? roof.value("matmul_tflops", Json()) : Json();
    if (!is_measured(read) || !is_measured(matmul)) {
      return source.error(
          fmt::format("has a gpu, but no roof; \"roof\" with read_tbps and matmul_tflops, from {} to {}, is "
                      "needed, by which another device is compared",
                      kLeastNumber, kMostNumber));
    }
    shapes.roof = runtime::Roof{.read_tbps = read, .matmul_tflops = matmul};
  }
  return &json.at("shapes");
}

}  // namespace

Result<Shapes> read_shapes(const std::string& path) {
  Result<std::unique_ptr<io::ByteSource>> source = io::open_file(path);
  if (!source.ok()) return source.status();
  const Result<Json> json = read_json(**source, "a file of shapes");
  if (!json.ok()) return json.status();
  Shapes shapes;
  Result<const Json*> list = list_of(*json, **source, shapes);
  if (!list.ok()) return list.status();
  if ((*list)->empty()) return (*source)->error("has no shape; at least one is needed");
  for (const Json& each : **list) {
    Result<Shape> shape = ShapeReader(each).read();
    const std::string where = fmt::format("shape {}", shapes.list.size() + 1);
    if (!shape.ok()) return (*source)->error(fmt::format("{}: {}", where, shape.status().message()));
    const Status status = validate(case_of(*shape).problem);
    if (!status.ok()) return (*source)->error(fmt::format("{}: {}", where, status.message()));
    shapes.list.push_back(std::move(*shape));
  }
  return shapes;
}

const char* kind_of(const Shape& shape) {
  return shape.latent ? "latent" : "paged";
}

BenchCase case_of(const Shape& shape) {
  BenchCase c;
  DecodeProblem& p = c.problem;
  p.query.tokens = shape.query_tokens;
  p.query.heads = shape.heads;
  p.cache.heads = shape.kv_heads;
  p.cache.qk_dim = shape.dim;
  p.cache.v_dim = shape.latent ? kLatentValueDim : shape.dim;
  p.cache.page_size = 64;
  p.cache.layout = shape.latent ? KvLayout::kLatent : KvLayout::kSeparate;
  p.options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
  p.options.causal = true;
  c.lengths = shape.lengths;
  c.distribution = shape.varied ? "list" : "uniform";
  c.mean_length = static_cast<int>(std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0}) /
                                   static_cast<std::int64_t>(c.lengths.size()));
  const std::string heads = shape.latent ? fmt::format("h{}", shape.heads)
                                         : fmt::format("h{}-{} d{}", shape.heads, shape.kv_heads, shape.dim);
  c.name = fmt::format("{} b{} s_q{} {} s_k{} {}", kind_of(shape), shape.lengths.size(), shape.query_tokens,
                       heads, c.mean_length, shape.varied ? "varied" : "uniform");
  return c;
}

}  // namespace flashlatent::tools
