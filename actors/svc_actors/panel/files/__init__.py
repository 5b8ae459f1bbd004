"""Sites' files: their folders, unfinished uploads, and jobs on files."""

from svc_actors.panel.files.files import COMPRESS, EXTRACT, FileWork, site_folder
from svc_actors.panel.files.uploads import Upload, Uploads, UploadStatus

__all__ = ["COMPRESS", "EXTRACT", "FileWork", "Upload", "UploadStatus", "Uploads", "site_folder"]
