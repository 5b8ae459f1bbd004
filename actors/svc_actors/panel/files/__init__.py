"""Sites' files: their folders, unfinished uploads, and jobs on files."""

from svc_actors.panel.files.folders import site_folder
from svc_actors.panel.files.uploads import Upload, Uploads, UploadStatus
from svc_actors.panel.files.work import COMPRESS, EXTRACT, FileWork

__all__ = ["COMPRESS", "EXTRACT", "FileWork", "Upload", "UploadStatus", "Uploads", "site_folder"]
