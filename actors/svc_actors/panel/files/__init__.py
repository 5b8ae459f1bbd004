"""Sites' files, as the panel knows them: whose folder, uploads that are not finished, and the work of its jobs."""

from svc_actors.panel.files.folders import site_folder
from svc_actors.panel.files.uploads import Upload, Uploads, UploadStatus
from svc_actors.panel.files.work import COMPRESS, EXTRACT, FileWork

__all__ = ["COMPRESS", "EXTRACT", "FileWork", "Upload", "UploadStatus", "Uploads", "site_folder"]
