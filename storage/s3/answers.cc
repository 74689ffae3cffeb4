#include "storage/s3/answers.h"

#include <tinyxml2.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace espalier::s3 {
namespace {

using tinyxml2::XMLElement;

// Null if there is none.
const XMLElement* Child(const XMLElement* parent, const char* name) {
  return parent == nullptr ? nullptr : parent->FirstChildElement(name);
}

std::string Text(const XMLElement* parent, const char* name) {
  const XMLElement* child = Child(parent, name);
  const char* text = child == nullptr ? nullptr : child->GetText();
  return text == nullptr ? "" : text;
}

// Returns the root element if it has this name.
const XMLElement* Root(tinyxml2::XMLDocument& document, absl::string_view xml, const char* name) {
  if (document.Parse(xml.data(), xml.size()) != tinyxml2::XML_SUCCESS) return nullptr;
  const XMLElement* root = document.RootElement();
  return root != nullptr && absl::string_view(root->Name()) == name ? root : nullptr;
}

// Not retried: a server that answers so will do it again.
absl::Status Unexpected(const char* wanted, absl::string_view xml) {
  return absl::InternalError(absl::StrCat("the answer is no ", wanted, ": '", xml.substr(0, 200),
                                          "'; does the endpoint speak S3's protocol?"));
}

}  // namespace

ErrorAnswer ParseError(absl::string_view xml) {
  tinyxml2::XMLDocument document;
  const XMLElement* error = Root(document, xml, "Error");
  if (error == nullptr) {
    tinyxml2::XMLDocument of_sts;
    const XMLElement* root = Root(of_sts, xml, "ErrorResponse");
    error = Child(root, "Error");
    return {Text(error, "Code"), Text(error, "Message"), ""};
  }
  return {Text(error, "Code"), Text(error, "Message"), Text(error, "Region")};
}

bool IsError(absl::string_view xml) {
  tinyxml2::XMLDocument document;
  return Root(document, xml, "Error") != nullptr;
}

bool IsCompletedUpload(absl::string_view xml) {
  tinyxml2::XMLDocument document;
  return Root(document, xml, "CompleteMultipartUploadResult") != nullptr;
}

absl::StatusOr<ListPage> ParseListPage(absl::string_view xml) {
  tinyxml2::XMLDocument document;
  const XMLElement* root = Root(document, xml, "ListBucketResult");
  if (root == nullptr) return Unexpected("list of objects", xml);
  ListPage page;
  for (const XMLElement* entry = root->FirstChildElement("Contents"); entry != nullptr;
       entry = entry->NextSiblingElement("Contents")) {
    ListedObject object;
    object.key = Text(entry, "Key");
    if (object.key.empty() || !absl::SimpleAtoi(Text(entry, "Size"), &object.bytes) ||
        object.bytes < 0) {
      return Unexpected("list of objects", xml);
    }
    page.objects.push_back(std::move(object));
  }
  if (Text(root, "IsTruncated") == "true") {
    page.next = Text(root, "NextContinuationToken");
    if (page.next.empty()) return Unexpected("list of objects with its next page", xml);
  }
  return page;
}

absl::StatusOr<UploadsPage> ParseUploadsPage(absl::string_view xml) {
  tinyxml2::XMLDocument document;
  const XMLElement* root = Root(document, xml, "ListMultipartUploadsResult");
  if (root == nullptr) return Unexpected("list of uploads", xml);
  UploadsPage page;
  for (const XMLElement* entry = root->FirstChildElement("Upload"); entry != nullptr;
       entry = entry->NextSiblingElement("Upload")) {
    PendingUpload upload{Text(entry, "Key"), Text(entry, "UploadId")};
    if (upload.key.empty() || upload.id.empty()) return Unexpected("list of uploads", xml);
    page.uploads.push_back(std::move(upload));
  }
  page.more = Text(root, "IsTruncated") == "true";
  page.next = {Text(root, "NextKeyMarker"), Text(root, "NextUploadIdMarker")};
  if (page.more && page.next.key.empty()) {
    return Unexpected("list of uploads with its next page", xml);
  }
  return page;
}

absl::StatusOr<std::string> ParseUploadId(absl::string_view xml) {
  tinyxml2::XMLDocument document;
  const XMLElement* root = Root(document, xml, "InitiateMultipartUploadResult");
  std::string id = Text(root, "UploadId");
  if (id.empty()) return Unexpected("begin of an upload", xml);
  return id;
}

std::string CompletedParts(const std::vector<std::string>& etags) {
  tinyxml2::XMLPrinter printer(nullptr, /*compact=*/true);
  printer.OpenElement("CompleteMultipartUpload");
  int number = 0;
  for (const std::string& etag : etags) {
    printer.OpenElement("Part");
    printer.OpenElement("PartNumber");
    printer.PushText(++number);
    printer.CloseElement();
    printer.OpenElement("ETag");
    printer.PushText(etag.c_str());
    printer.CloseElement();
    printer.CloseElement();
  }
  printer.CloseElement();
  return std::string(printer.CStr());
}

absl::StatusOr<Credentials> ParseAssumedRole(absl::string_view xml) {
  tinyxml2::XMLDocument document;
  const XMLElement* root = Root(document, xml, "AssumeRoleWithWebIdentityResponse");
  const XMLElement* given = Child(Child(root, "AssumeRoleWithWebIdentityResult"), "Credentials");
  Credentials found{Text(given, "AccessKeyId"), Text(given, "SecretAccessKey"),
                    Text(given, "SessionToken")};
  std::string problem;
  if (found.access_key_id.empty() || found.secret_access_key.empty() ||
      !absl::ParseTime(absl::RFC3339_full, Text(given, "Expiration"), &found.expires, &problem)) {
    return Unexpected("answer with credentials", "");  // it may hold a part of them
  }
  return found;
}

}  // namespace espalier::s3
